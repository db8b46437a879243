/* Operators that combine elements one by one: comparisons, arithmetic, isclose, unary ones. */
#include "operators.h"

#include <math.h>

/* ---- two operands: the result, the left one, and the right one or a scalar ---- */

enum binary { EQ, NE, LT, GT, LE, GE, ADD, SUB, MUL, DIV, AND, OR };

static struct number add_scaled(struct number left, struct number right, struct number factor)
{
    if (left.kind != FLOATING && right.kind != FLOATING && factor.kind != FLOATING) {
        left.integer = (int64_t)((uint64_t)left.integer + (uint64_t)factor.integer * (uint64_t)right.integer);
        return left;
    }
    double real = number_real(factor) * number_real(right) - factor.imaginary * right.imaginary;
    double imaginary = number_real(factor) * right.imaginary + factor.imaginary * number_real(right);
    return (struct number){FLOATING, 0, number_real(left) + real, left.imaginary + imaginary};
}

static struct number negate(struct number value)
{
    value.integer = (int64_t)(0 - (uint64_t)value.integer);
    value.real = -value.real;
    value.imaginary = -value.imaginary;
    return value;
}

static struct number multiply(struct number left, struct number right)
{
    if (left.kind != FLOATING && right.kind != FLOATING) {
        left.integer = (int64_t)((uint64_t)left.integer * (uint64_t)right.integer);
        return left;
    }
    double real = number_real(left) * number_real(right);
    double imaginary = number_real(left) * right.imaginary + left.imaginary * number_real(right);
    return (struct number){FLOATING, 0, real - left.imaginary * right.imaginary, imaginary};
}

static struct number divide(struct number left, struct number right)
{
    if (left.imaginary == 0 && right.imaginary == 0) {
        return number_of_real(number_real(left) / number_real(right));
    }
    double real = number_real(right);
    double norm = real * real + right.imaginary * right.imaginary;
    struct number inverse = {FLOATING, 0, real / norm, -right.imaginary / norm};
    return multiply(left, inverse);
}

static struct number combine(enum binary kind, struct number left, struct number right, struct number factor)
{
    switch (kind) {
    case EQ:
        return number_of_integer(number_equal(left, right));
    case NE:
        return number_of_integer(!number_equal(left, right));
    case LT:
        return number_of_integer(number_less(left, right));
    case GT:
        return number_of_integer(number_less(right, left));
    case LE:
        return number_of_integer(number_less(left, right) || number_equal(left, right));
    case GE:
        return number_of_integer(number_less(right, left) || number_equal(left, right));
    case ADD:
        return add_scaled(left, right, factor);
    case SUB:
        return add_scaled(left, right, negate(factor));
    case MUL:
        return multiply(left, right);
    case DIV:
        return divide(left, right);
    case AND:
        left.integer &= right.integer;
        return left;
    default:
        left.integer |= right.integer;
        return left;
    }
}

/* an element in the type in which the operation happens */
static struct number operand(const char *element, int dtype, int compute)
{
    struct number value = number_load(element, dtype);
    return dtype == compute ? value : number_as(value, compute);
}

static void binary_row(char *const at[], const int64_t steps[], int64_t count, void *context)
{
    const aclOpExecutor *executor = context;
    const struct parameters *parameters = &executor->parameters;
    const struct view *views = executor->views;
    bool has_right = executor->count > 2;
    struct number factor = executor->scalars[1];
    struct number right = executor->scalars[0];
    for (int64_t i = 0; i < count; i++) {
        struct number left = operand(at[1] + i * steps[1], views[1].dtype, parameters->compute);
        if (has_right) {
            right = operand(at[2] + i * steps[2], views[2].dtype, parameters->compute);
        }
        struct number result = combine((enum binary)parameters->kind, left, right, factor);
        number_store(at[0] + i * steps[0], views[0].dtype, result);
    }
}

static bool can_compute(enum binary kind, int dtype)
{
    bool orders = kind == LT || kind == GT || kind == LE || kind == GE;
    bool takes_bits = kind == AND || kind == OR;
    if (takes_bits) {
        return dtype_category(dtype) <= IS_INTEGER;
    }
    return !(orders && dtype_category(dtype) == IS_COMPLEX);
}

/* scalars: [0] the right operand when it is no tensor, [1] the factor of the right operand */
static aclError prepare_binary(aclOpExecutor *executor)
{
    struct parameters *parameters = &executor->parameters;
    bool has_right = executor->count > 2;
    int left = executor->views[1].dtype;
    aclError error = prepare_elementwise(executor);
    if (error != ACL_OK) {
        return error;
    }
    if (has_right) { /* the only scalar, if any, is the factor */
        parameters->compute = dtype_promote(left, executor->views[2].dtype);
        executor->scalars[1] = executor->scalar_count > 0 ? executor->scalars[0] : number_of_integer(1);
    } else {
        parameters->compute = dtype_promote_scalar(left, executor->scalar_dtypes[0]);
        executor->scalars[0] = number_as(executor->scalars[0], parameters->compute);
        executor->scalars[1] = executor->scalar_count > 1 ? executor->scalars[1] : number_of_integer(1);
    }
    if (!can_compute((enum binary)parameters->kind, parameters->compute)) {
        return operator_refuse(executor->name, "operands of data type %d", parameters->compute);
    }
    return ACL_OK;
}

static aclError run_rows(aclOpExecutor *executor, row_function row)
{
    const struct view *views[3];
    for (int i = 0; i < executor->count; i++) {
        views[i] = &executor->views[i];
    }
    for_each_row(views, executor->count, row, executor);
    return ACL_OK;
}

static aclError run_binary(aclOpExecutor *executor)
{
    return run_rows(executor, binary_row);
}

#define BINARY_PLAN(operator, which, ...) \
    PLAN(.name = #operator, .prepare = prepare_binary, .run = run_binary, .parameters = {.kind = which}, __VA_ARGS__)

#define TENSOR_AND_TENSOR(name, which)                                                          \
    FIRST_HALF(name)(const aclTensor *self, const aclTensor *other, const aclTensor *out, PLANNED) \
    {                                                                                           \
        BINARY_PLAN(name, which, .count = 3, .tensors = {out, self, other});                    \
    }                                                                                           \
    SECOND_HALF(name)

#define TENSOR_AND_SCALAR(name, which)                                                          \
    FIRST_HALF(name)(const aclTensor *self, const aclScalar *other, const aclTensor *out, PLANNED) \
    {                                                                                           \
        BINARY_PLAN(name, which, .count = 2, .tensors = {out, self}, .scalar_count = 1,         \
                    .scalars = {other});                                                        \
    }                                                                                           \
    SECOND_HALF(name)

#define INPLACE_TENSOR(name, which)                                                             \
    FIRST_HALF(name)(const aclTensor *self, const aclTensor *other, PLANNED)                    \
    {                                                                                           \
        BINARY_PLAN(name, which, .count = 3, .tensors = {self, self, other});                   \
    }                                                                                           \
    SECOND_HALF(name)

#define INPLACE_SCALAR(name, which)                                                             \
    FIRST_HALF(name)(const aclTensor *self, const aclScalar *other, PLANNED)                    \
    {                                                                                           \
        BINARY_PLAN(name, which, .count = 2, .tensors = {self, self}, .scalar_count = 1,        \
                    .scalars = {other});                                                        \
    }                                                                                           \
    SECOND_HALF(name)

#define SCALED_TENSOR(name, which)                                                              \
    FIRST_HALF(name)                                                                            \
    (const aclTensor *self, const aclTensor *other, const aclScalar *factor, const aclTensor *out, PLANNED) \
    {                                                                                           \
        BINARY_PLAN(name, which, .count = 3, .tensors = {out, self, other}, .scalar_count = 1,  \
                    .scalars = {factor});                                                       \
    }                                                                                           \
    SECOND_HALF(name)

#define SCALED_SCALAR(name, which)                                                              \
    FIRST_HALF(name)                                                                            \
    (const aclTensor *self, const aclScalar *other, const aclScalar *factor, const aclTensor *out, PLANNED) \
    {                                                                                           \
        BINARY_PLAN(name, which, .count = 2, .tensors = {out, self}, .scalar_count = 2,         \
                    .scalars = {other, factor});                                                \
    }                                                                                           \
    SECOND_HALF(name)

#define INPLACE_SCALED_TENSOR(name, which)                                                      \
    FIRST_HALF(name)(const aclTensor *self, const aclTensor *other, const aclScalar *factor, PLANNED) \
    {                                                                                           \
        BINARY_PLAN(name, which, .count = 3, .tensors = {self, self, other}, .scalar_count = 1, \
                    .scalars = {factor});                                                       \
    }                                                                                           \
    SECOND_HALF(name)

#define INPLACE_SCALED_SCALAR(name, which)                                                      \
    FIRST_HALF(name)(const aclTensor *self, const aclScalar *other, const aclScalar *factor, PLANNED) \
    {                                                                                           \
        BINARY_PLAN(name, which, .count = 2, .tensors = {self, self}, .scalar_count = 2,        \
                    .scalars = {other, factor});                                                \
    }                                                                                           \
    SECOND_HALF(name)

TENSOR_AND_TENSOR(aclnnEqTensor, EQ)
TENSOR_AND_SCALAR(aclnnEqScalar, EQ)
TENSOR_AND_TENSOR(aclnnNeTensor, NE)
TENSOR_AND_SCALAR(aclnnNeScalar, NE)
TENSOR_AND_TENSOR(aclnnLtTensor, LT)
TENSOR_AND_SCALAR(aclnnLtScalar, LT)
TENSOR_AND_TENSOR(aclnnGtTensor, GT)
TENSOR_AND_SCALAR(aclnnGtScalar, GT)
TENSOR_AND_TENSOR(aclnnLeTensor, LE)
TENSOR_AND_SCALAR(aclnnLeScalar, LE)
TENSOR_AND_TENSOR(aclnnGeTensor, GE)
TENSOR_AND_SCALAR(aclnnGeScalar, GE)
TENSOR_AND_TENSOR(aclnnBitwiseAndTensor, AND)
TENSOR_AND_SCALAR(aclnnBitwiseAndScalar, AND)
TENSOR_AND_TENSOR(aclnnBitwiseOrTensor, OR)
TENSOR_AND_SCALAR(aclnnBitwiseOrScalar, OR)

SCALED_TENSOR(aclnnAdd, ADD)
SCALED_SCALAR(aclnnAdds, ADD)
INPLACE_SCALED_TENSOR(aclnnInplaceAdd, ADD)
INPLACE_SCALED_SCALAR(aclnnInplaceAdds, ADD)
SCALED_TENSOR(aclnnSub, SUB)
SCALED_SCALAR(aclnnSubs, SUB)
INPLACE_SCALED_TENSOR(aclnnInplaceSub, SUB)
INPLACE_SCALED_SCALAR(aclnnInplaceSubs, SUB)

TENSOR_AND_TENSOR(aclnnMul, MUL)
TENSOR_AND_SCALAR(aclnnMuls, MUL)
INPLACE_TENSOR(aclnnInplaceMul, MUL)
INPLACE_SCALAR(aclnnInplaceMuls, MUL)
TENSOR_AND_TENSOR(aclnnDiv, DIV)
TENSOR_AND_SCALAR(aclnnDivs, DIV)
INPLACE_TENSOR(aclnnInplaceDiv, DIV)
INPLACE_SCALAR(aclnnInplaceDivs, DIV)

/* ---- isclose: first is the relative tolerance, second the absolute one ---- */

static bool is_close(struct number left, struct number right, const struct parameters *parameters)
{
    if (number_is_nan(left) || number_is_nan(right)) {
        return parameters->equal_nan && number_is_nan(left) && number_is_nan(right);
    }
    if (number_equal(left, right)) {
        return true;
    }
    double distance = hypot(number_real(left) - number_real(right), left.imaginary - right.imaginary);
    double size = hypot(number_real(right), right.imaginary);
    return isfinite(distance) && isfinite(size) && distance <= parameters->second + parameters->first * size;
}

static void is_close_row(char *const at[], const int64_t steps[], int64_t count, void *context)
{
    const aclOpExecutor *executor = context;
    const struct view *views = executor->views;
    for (int64_t i = 0; i < count; i++) {
        struct number left = number_load(at[1] + i * steps[1], views[1].dtype);
        struct number right = number_load(at[2] + i * steps[2], views[2].dtype);
        bool close = is_close(left, right, &executor->parameters);
        number_store(at[0] + i * steps[0], views[0].dtype, number_of_integer(close));
    }
}

static aclError run_is_close(aclOpExecutor *executor)
{
    return run_rows(executor, is_close_row);
}

FIRST_HALF(aclnnIsClose)
(const aclTensor *self, const aclTensor *other, double relative, double absolute, bool equal_nan,
 const aclTensor *out, PLANNED)
{
    PLAN(.name = "aclnnIsClose", .prepare = prepare_elementwise, .run = run_is_close, .count = 3,
         .tensors = {out, self, other},
         .parameters = {.first = relative, .second = absolute, .equal_nan = equal_nan});
}
SECOND_HALF(aclnnIsClose)

/* ---- one operand ---- */

enum unary { ABS, NEG, CEIL, FLOOR, IS_FINITE, LOGICAL_NOT, BITWISE_NOT };

static struct number absolute_value(struct number value)
{
    if (value.kind == FLOATING) {
        return number_of_real(value.imaginary != 0 ? hypot(value.real, value.imaginary) : fabs(value.real));
    }
    return value.kind == INTEGER && value.integer < 0 ? negate(value) : value;
}

static struct number transform(enum unary kind, struct number value, int dtype)
{
    switch (kind) {
    case ABS:
        return absolute_value(value);
    case NEG:
        return negate(value);
    case CEIL:
        value.real = ceil(value.real);
        return value;
    case FLOOR:
        value.real = floor(value.real);
        return value;
    case IS_FINITE:
        return number_of_integer(isfinite(value.real) && isfinite(value.imaginary));
    case LOGICAL_NOT:
        return number_of_integer(!number_is_nonzero(value));
    default:
        value.integer = dtype == BOOL ? !value.integer : ~value.integer;
        return value;
    }
}

static void unary_row(char *const at[], const int64_t steps[], int64_t count, void *context)
{
    const aclOpExecutor *executor = context;
    const struct view *views = executor->views;
    for (int64_t i = 0; i < count; i++) {
        struct number value = number_load(at[1] + i * steps[1], views[1].dtype);
        struct number result = transform((enum unary)executor->parameters.kind, value, views[1].dtype);
        number_store(at[0] + i * steps[0], views[0].dtype, result);
    }
}

static aclError run_unary(aclOpExecutor *executor)
{
    return run_rows(executor, unary_row);
}

static aclError prepare_bits(aclOpExecutor *executor)
{
    if (dtype_category(executor->views[1].dtype) > IS_INTEGER) {
        return operator_refuse(executor->name, "an operand of data type %d", executor->views[1].dtype);
    }
    return prepare_elementwise(executor);
}

#define UNARY(operator, which, check)                                                       \
    FIRST_HALF(operator)(const aclTensor *self, const aclTensor *out, PLANNED)              \
    {                                                                                       \
        PLAN(.name = #operator, .prepare = check, .run = run_unary, .count = 2,             \
             .tensors = {out, self}, .parameters = {.kind = which});                        \
    }                                                                                       \
    SECOND_HALF(operator)

UNARY(aclnnAbs, ABS, prepare_elementwise)
UNARY(aclnnNeg, NEG, prepare_elementwise)
UNARY(aclnnCeil, CEIL, prepare_elementwise)
UNARY(aclnnFloor, FLOOR, prepare_elementwise)
UNARY(aclnnIsFinite, IS_FINITE, prepare_elementwise)
UNARY(aclnnLogicalNot, LOGICAL_NOT, prepare_elementwise)
UNARY(aclnnBitwiseNot, BITWISE_NOT, prepare_bits)
