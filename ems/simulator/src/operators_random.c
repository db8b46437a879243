/* Random numbers: a hash of seed, offset and position. Reproducible, and not those of a device. */
#include "operators.h"

#include <math.h>

static uint64_t scramble(uint64_t value) /* splitmix64 */
{
    value += UINT64_C(0x9e3779b97f4a7c15);
    value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
    return value ^ value >> 31;
}

static uint64_t random_bits(const struct parameters *parameters, uint64_t position)
{
    uint64_t stream = scramble(scramble(parameters->seed) ^ parameters->seed_offset);
    return scramble(stream ^ scramble(position));
}

/* in [0, 1), with as many bits as keep it below 1 in that type */
static double random_unit(const struct parameters *parameters, uint64_t position, int bits)
{
    return ldexp((double)(random_bits(parameters, position) >> (64 - bits)), -bits);
}

static int unit_bits(int dtype)
{
    switch (dtype) {
    case F64:
        return 53;
    case F32:
        return 24;
    case F16:
        return 11;
    case BF16:
        return 8;
    default:
        return 3;
    }
}

static struct number uniform_element(const struct parameters *parameters, uint64_t i, int dtype)
{
    double unit = random_unit(parameters, i, unit_bits(dtype));
    return number_of_real(parameters->first + unit * (parameters->second - parameters->first));
}

static struct number normal_element(const struct parameters *parameters, uint64_t i, int dtype)
{
    const double turn = 6.283185307179586;
    (void)dtype;
    double radius = sqrt(-2 * log(1 - random_unit(parameters, 2 * i, 53)));
    double angle = turn * random_unit(parameters, 2 * i + 1, 53);
    return number_of_real(parameters->first + parameters->second * radius * cos(angle));
}

static struct number integer_element(const struct parameters *parameters, uint64_t i, int dtype)
{
    uint64_t range = (uint64_t)parameters->high - (uint64_t)parameters->low;
    uint64_t bits = random_bits(parameters, i);
    (void)dtype;
    return number_of_integer((int64_t)((uint64_t)parameters->low + (range > 0 ? bits % range : bits)));
}

typedef struct number (*element_function)(const struct parameters *parameters, uint64_t i, int dtype);

static aclError fill_random(aclOpExecutor *executor, element_function element)
{
    const struct view *self = &executor->views[0];
    uint64_t numel = (uint64_t)view_numel(self);
    struct walk walk;
    walk_start(&walk, &self, 1);
    for (uint64_t i = 0; i < numel; i++) {
        number_store(walk.at[0], self->dtype, element(&executor->parameters, i, self->dtype));
        walk_next(&walk);
    }
    return ACL_OK;
}

static aclError run_uniform(aclOpExecutor *executor)
{
    return fill_random(executor, uniform_element);
}

static aclError run_normal(aclOpExecutor *executor)
{
    return fill_random(executor, normal_element);
}

static aclError run_integers(aclOpExecutor *executor)
{
    return fill_random(executor, integer_element);
}

static aclError prepare_random(aclOpExecutor *executor)
{
    if (dtype_category(executor->views[0].dtype) == IS_COMPLEX) {
        return operator_refuse(executor->name, "complex random numbers");
    }
    return require_numbers(executor);
}

FIRST_HALF(aclnnInplaceUniform)
(const aclTensor *self, double low, double high, int64_t seed, int64_t offset, PLANNED)
{
    PLAN(.name = "aclnnInplaceUniform", .prepare = prepare_random, .run = run_uniform, .count = 1,
         .tensors = {self},
         .parameters = {.first = low, .second = high, .seed = (uint64_t)seed, .seed_offset = (uint64_t)offset});
}
SECOND_HALF(aclnnInplaceUniform)

FIRST_HALF(aclnnInplaceNormal)
(const aclTensor *self, float mean, float deviation, int64_t seed, int64_t offset, PLANNED)
{
    PLAN(.name = "aclnnInplaceNormal", .prepare = prepare_random, .run = run_normal, .count = 1,
         .tensors = {self},
         .parameters = {.first = (double)mean, .second = (double)deviation, .seed = (uint64_t)seed,
                        .seed_offset = (uint64_t)offset});
}
SECOND_HALF(aclnnInplaceNormal)

FIRST_HALF(aclnnInplaceRandom)
(const aclTensor *self, int64_t low, int64_t high, int64_t seed, int64_t offset, PLANNED)
{
    PLAN(.name = "aclnnInplaceRandom", .prepare = prepare_random, .run = run_integers, .count = 1,
         .tensors = {self},
         .parameters = {.low = low, .high = high, .seed = (uint64_t)seed, .seed_offset = (uint64_t)offset});
}
SECOND_HALF(aclnnInplaceRandom)
