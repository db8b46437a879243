/* Refuses by name every operator that torch_npu looks up and no other module defines.
 *
 * If such a name did not exist, torch_npu would fall back to the older operator interface, whose
 * failure ends its task queue: later work on the device would be dropped without an error. Refused
 * in the first half, an operator raises in the caller and later work is unharmed. */
#include "operators.h"

#define WEAK __attribute__((weak))

#define REFUSED_FUNCTION(name)            \
    WEAK API aclError name(void)          \
    {                                     \
        return operator_refuse(#name, "this operator is not simulated"); \
    }

#define LOOKED_UP(name)                                             \
    WEAK API aclError name##GetWorkspaceSize(void)                  \
    {                                                               \
        return operator_refuse(#name, "this operator is not simulated"); \
    }                                                               \
    REFUSED_FUNCTION(name)

#include "operator_names.h"

/* asked for beside a first half, for the workspace that is enough for any shape */
REFUSED_FUNCTION(aclnnFlashAttentionUnpaddingScoreGradV5GetMaxWorkspaceSize)
REFUSED_FUNCTION(aclnnFlashAttentionVarLenScoreV5GetMaxWorkspaceSize)
REFUSED_FUNCTION(aclnnFusedInferAttentionScoreV3GetMaxWorkspaceSize)
REFUSED_FUNCTION(aclnnFusedInferAttentionScoreV4GetMaxWorkspaceSize)
REFUSED_FUNCTION(aclnnFusedInferAttentionScoreV5GetMaxWorkspaceSize)
REFUSED_FUNCTION(aclnnNpuFormatCastCalculateSizeAndFormat)
