/* How an operator is planned and launched.
 *
 * An operator is a pair. Its first half, <name>GetWorkspaceSize(operands, &workspace, &executor),
 * checks the operands and copies what it needs into an executor; the caller destroys its tensors
 * right after the second half, <name>(workspace, nbytes, executor, stream), which hands the
 * executor to the stream's worker. Only the worker touches device memory. */
#ifndef EMS_SIM_OPERATORS_H
#define EMS_SIM_OPERATORS_H
#include "kernels.h"

enum { MAX_TENSORS = 4, MAX_SCALARS = 3 };

typedef struct aclOpExecutor aclOpExecutor;

struct parameters {
    int64_t dim;
    int kind;               /* which one of a family: the comparison, the reduction, ... */
    int compute;            /* type in which numbers are combined */
    bool keep_dims;
    bool equal_nan;
    uint64_t reduced;       /* a bit for each dimension that a reduction removes */
    int64_t low;
    int64_t high;
    double first;           /* lower bound, mean or relative tolerance */
    double second;          /* upper bound, deviation or absolute tolerance */
    uint64_t seed;
    uint64_t seed_offset;
};

struct aclOpExecutor {
    const char *name;
    aclError (*run)(aclOpExecutor *executor);
    struct parameters parameters;
    int scalar_count;
    int scalar_dtypes[MAX_SCALARS];
    struct number scalars[MAX_SCALARS];
    aclTensor *result;      /* receives the shape of the result, or NULL */
    int count;
    struct view views[];    /* the one that is written comes first */
};

/* What a first half asks for. */
struct request {
    const char *name;
    aclError (*prepare)(aclOpExecutor *executor); /* checks shapes and types; may be NULL */
    aclError (*run)(aclOpExecutor *executor);
    int count;
    const aclTensor *tensors[MAX_TENSORS];
    const aclTensorList *list;                    /* its tensors follow; may be NULL */
    int scalar_count;
    const aclScalar *scalars[MAX_SCALARS];
    const aclTensor *result;
    bool across_devices;                          /* its tensors may lie on different devices */
    struct parameters parameters;
};

aclError operator_plan(const struct request *request, uint64_t *workspace, aclOpExecutor **planned);
aclError operator_launch(aclOpExecutor *executor, aclrtStream stream);

/* The refusal of what an operator cannot do, in its first half. Never "feature not supported":
 * torch_npu takes that code for a warning and goes on to the second half. */
aclError operator_refuse(const char *name, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Parts of `prepare`, each ACL_OK or a refusal. */
aclError require_numbers(aclOpExecutor *executor); /* every operand's elements can be read */
aclError require_index(const aclOpExecutor *executor, const struct view *index);
aclError require_same_dtype(const aclOpExecutor *executor, int left, int right);
aclError require_dim(aclOpExecutor *executor, int ndim);  /* and makes it count from the front */
aclError broadcast_operands(aclOpExecutor *executor);     /* all to the shape of the first */
aclError prepare_elementwise(aclOpExecutor *executor);    /* numbers, all of the first's shape */

/* operators_copy.c: the second view into the first, converting */
aclError prepare_copy(aclOpExecutor *executor);
aclError run_copy(aclOpExecutor *executor);

/* On the worker: element `at` of an index into a dimension of that size. */
aclError read_position(const aclOpExecutor *executor, const char *at, int dtype, int64_t size,
                       int64_t *position);

#define FIRST_HALF(name) API aclError name##GetWorkspaceSize
#define PLANNED uint64_t *workspace, aclOpExecutor **planned
#define PLAN(...) return operator_plan(&(struct request){__VA_ARGS__}, workspace, planned)

#define SECOND_HALF(name)                                                                       \
    API aclError name(void *workspace, uint64_t nbytes, aclOpExecutor *executor, aclrtStream stream) \
    {                                                                                           \
        (void)workspace;                                                                        \
        (void)nbytes;                                                                           \
        return operator_launch(executor, stream);                                               \
    }

#endif
