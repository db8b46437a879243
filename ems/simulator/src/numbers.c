/* Element formats. Conversions agree bit for bit with torch on the CPU, except for the payload
 * of a NaN, about which torch's own scalar and vector code disagree. */
#include "numbers.h"

#include <math.h>
#include <string.h>

/* ---- formats of 8 and 16 bits: sign, exponent, mantissa ---- */

struct small_format {
    int mantissa_bits;
    int bias;
    uint32_t sign;
    uint32_t largest;  /* the largest finite value */
    uint32_t overflow; /* what becomes of values beyond it */
    uint32_t nan;
};

static const struct small_format FORMAT_F16 = {10, 15, 0x8000, 0x7bff, 0x7c00, 0x7e00};
static const struct small_format FORMAT_BF16 = {7, 127, 0x8000, 0x7f7f, 0x7f80, 0x7fc0};
static const struct small_format FORMAT_E5M2 = {2, 15, 0x80, 0x7b, 0x7c, 0x7f};
static const struct small_format FORMAT_E4M3 = {3, 7, 0x80, 0x7e, 0x7e, 0x7f}; /* no infinity */

enum { F32_MANTISSA_BITS = 23, F32_BIAS = 127 };

static uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* drops the lowest bits, rounding to the nearest, ties to even */
static uint32_t shift_rounding(uint32_t value, int shift)
{
    if (shift > 25) {
        return 0; /* 24 significant bits: less than half of a unit */
    }
    uint32_t half = 1u << (shift - 1);
    uint32_t odd = value >> shift & 1;
    return (value + half - 1 + odd) >> shift;
}

static uint32_t small_from_float(float value, const struct small_format *format)
{
    uint32_t bits = bits_of_float(value);
    uint32_t sign = bits >> 31 ? format->sign : 0;
    uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) {
        return sign | format->nan;
    }
    int shift = F32_MANTISSA_BITS - format->mantissa_bits;
    int lowest = F32_BIAS + 1 - format->bias; /* biased exponent of the smallest normal value */
    int exponent = (int)(magnitude >> F32_MANTISSA_BITS);
    if (exponent < lowest) {
        uint32_t significand = (magnitude & 0x7fffff) | (exponent ? 0x800000 : 0);
        return sign | shift_rounding(significand, shift + lowest - (exponent ? exponent : 1));
    }
    uint32_t rebased = magnitude - ((uint32_t)(lowest - 1) << F32_MANTISSA_BITS);
    uint32_t rounded = shift_rounding(rebased, shift);
    return sign | (rounded > format->largest ? format->overflow : rounded);
}

static float small_to_float(uint32_t small, const struct small_format *format)
{
    uint32_t magnitude = small & (format->sign - 1);
    float sign = small & format->sign ? -1.0f : 1.0f;
    if (magnitude > format->largest) {
        return sign * (magnitude == format->overflow ? INFINITY : NAN);
    }
    uint32_t mantissa = magnitude & ((1u << format->mantissa_bits) - 1);
    int exponent = (int)(magnitude >> format->mantissa_bits);
    if (exponent == 0) {
        return sign * ldexpf((float)mantissa, 1 - format->bias - format->mantissa_bits);
    }
    uint32_t biased = (uint32_t)(exponent - format->bias + F32_BIAS);
    uint32_t fraction = mantissa << (F32_MANTISSA_BITS - format->mantissa_bits);
    return sign * float_of_bits(biased << F32_MANTISSA_BITS | fraction);
}

/* ---- types ---- */

size_t dtype_size(int dtype)
{
    switch (dtype) {
    case I8:
    case U8:
    case BOOL:
    case HIF8:
    case F8_E5M2:
    case F8_E4M3:
    case F8_E8M0:
        return 1;
    case F16:
    case BF16:
    case I16:
    case U16:
        return 2;
    case F32:
    case I32:
    case U32:
    case C32:
        return 4;
    case F64:
    case I64:
    case U64:
    case C64:
        return 8;
    case C128:
        return 16;
    default:
        return 0;
    }
}

static bool fits_float(int dtype)
{
    return dtype == F32 || dtype == F16 || dtype == BF16 || dtype == F8_E5M2 || dtype == F8_E4M3;
}

bool dtype_has_numbers(int dtype)
{
    return dtype_size(dtype) != 0 && dtype != HIF8 && dtype != F8_E8M0 && dtype != C32;
}

enum category dtype_category(int dtype)
{
    switch (dtype) {
    case BOOL:
        return IS_BOOL;
    case I8:
    case U8:
    case I16:
    case U16:
    case I32:
    case U32:
    case I64:
    case U64:
        return IS_INTEGER;
    case C32:
    case C64:
    case C128:
        return IS_COMPLEX;
    default:
        return IS_REAL;
    }
}

static bool is_signed(int dtype)
{
    return dtype == I8 || dtype == I16 || dtype == I32 || dtype == I64;
}

static int promote_integers(int left, int right)
{
    int larger = dtype_size(left) >= dtype_size(right) ? left : right;
    if (is_signed(left) == is_signed(right)) {
        return larger;
    }
    if (is_signed(larger) && dtype_size(left) != dtype_size(right)) {
        return larger;
    }
    return dtype_size(larger) == 1 ? I16 : I64;
}

int dtype_promote(int left, int right)
{
    enum category left_category = dtype_category(left);
    enum category right_category = dtype_category(right);
    if (left == right) {
        return left;
    }
    if (left_category != right_category) {
        int higher = left_category > right_category ? left : right;
        bool doubles = left == F64 || right == F64;
        return higher == C64 && doubles ? C128 : higher;
    }
    if (left_category == IS_INTEGER) {
        return promote_integers(left, right);
    }
    if (dtype_size(left) == dtype_size(right)) {
        return F32; /* two formats of 8 or of 16 bits, of which neither holds the other */
    }
    return dtype_size(left) > dtype_size(right) ? left : right;
}

int dtype_promote_scalar(int tensor, int scalar)
{
    if (dtype_category(scalar) <= dtype_category(tensor)) {
        return tensor;
    }
    switch (dtype_category(scalar)) {
    case IS_INTEGER:
        return I64;
    case IS_REAL:
        return F32;
    default:
        return tensor == F64 ? C128 : C64;
    }
}

/* ---- numbers ---- */

struct number number_of_integer(int64_t value)
{
    return (struct number){.kind = INTEGER, .integer = value};
}

struct number number_of_real(double value)
{
    return (struct number){.kind = FLOATING, .real = value};
}

static struct number number_of_complex(double real, double imaginary)
{
    return (struct number){.kind = FLOATING, .real = real, .imaginary = imaginary};
}

double number_real(struct number value)
{
    switch (value.kind) {
    case INTEGER:
        return (double)value.integer;
    case UNSIGNED:
        return (double)(uint64_t)value.integer;
    default:
        return value.real;
    }
}

/* rounded once: an integer must not pass through double on its way to float */
static float number_float(struct number value)
{
    switch (value.kind) {
    case INTEGER:
        return (float)value.integer;
    case UNSIGNED:
        return (float)(uint64_t)value.integer;
    default:
        return (float)value.real;
    }
}

/* the bits of the integer; out of range as the processor's own conversion leaves it */
static uint64_t number_integer_bits(struct number value)
{
    const double two_to_63 = 9223372036854775808.0;
    if (value.kind != FLOATING) {
        return (uint64_t)value.integer;
    }
    if (value.real >= -two_to_63 && value.real < two_to_63) {
        return (uint64_t)(int64_t)value.real;
    }
    if (value.real >= two_to_63 && value.real < 2 * two_to_63) {
        return (uint64_t)value.real;
    }
    return (uint64_t)INT64_MIN;
}

bool number_is_nonzero(struct number value)
{
    if (value.kind != FLOATING) {
        return value.integer != 0;
    }
    return value.real != 0 || value.imaginary != 0;
}

bool number_is_nan(struct number value)
{
    return value.kind == FLOATING && (isnan(value.real) || isnan(value.imaginary));
}

bool number_equal(struct number left, struct number right)
{
    if (left.kind == FLOATING || right.kind == FLOATING) {
        return number_real(left) == number_real(right) && left.imaginary == right.imaginary;
    }
    return left.integer == right.integer;
}

bool number_less(struct number left, struct number right)
{
    if (left.kind == FLOATING || right.kind == FLOATING) {
        return number_real(left) < number_real(right);
    }
    if (left.kind == UNSIGNED || right.kind == UNSIGNED) {
        return (uint64_t)left.integer < (uint64_t)right.integer;
    }
    return left.integer < right.integer;
}

#define LOAD(type, variable) \
    type variable;           \
    memcpy(&variable, element, sizeof variable)

static struct number load_integer(const void *element, int dtype)
{
    switch (dtype) {
    case I8: {
        LOAD(int8_t, value);
        return number_of_integer(value);
    }
    case U8: {
        LOAD(uint8_t, value);
        return number_of_integer(value);
    }
    case BOOL: {
        LOAD(uint8_t, value);
        return number_of_integer(value != 0);
    }
    case I16: {
        LOAD(int16_t, value);
        return number_of_integer(value);
    }
    case U16: {
        LOAD(uint16_t, value);
        return number_of_integer(value);
    }
    case I32: {
        LOAD(int32_t, value);
        return number_of_integer(value);
    }
    case U32: {
        LOAD(uint32_t, value);
        return number_of_integer(value);
    }
    default: {
        LOAD(int64_t, value);
        return (struct number){.kind = dtype == U64 ? UNSIGNED : INTEGER, .integer = value};
    }
    }
}

static inline float load_float(const void *element, int dtype)
{
    switch (dtype) {
    case F16: {
        LOAD(uint16_t, value);
        return small_to_float(value, &FORMAT_F16);
    }
    case BF16: {
        LOAD(uint16_t, value);
        return float_of_bits((uint32_t)value << 16);
    }
    case F8_E5M2: {
        LOAD(uint8_t, value);
        return small_to_float(value, &FORMAT_E5M2);
    }
    case F8_E4M3: {
        LOAD(uint8_t, value);
        return small_to_float(value, &FORMAT_E4M3);
    }
    default: {
        LOAD(float, value);
        return value;
    }
    }
}

struct number number_load(const void *element, int dtype)
{
    if (fits_float(dtype)) {
        return number_of_real(load_float(element, dtype));
    }
    switch (dtype) {
    case F64: {
        LOAD(double, value);
        return number_of_real(value);
    }
    case C64: {
        float parts[2];
        memcpy(parts, element, sizeof parts);
        return number_of_complex(parts[0], parts[1]);
    }
    case C128: {
        double parts[2];
        memcpy(parts, element, sizeof parts);
        return number_of_complex(parts[0], parts[1]);
    }
    default:
        return load_integer(element, dtype);
    }
}

#define STORE(type, expression)                \
    do {                                       \
        type converted = (type)(expression);   \
        memcpy(element, &converted, sizeof converted); \
    } while (0)

static void store_integer(void *element, int dtype, uint64_t bits)
{
    switch (dtype_size(dtype)) {
    case 1:
        STORE(uint8_t, bits);
        break;
    case 2:
        STORE(uint16_t, bits);
        break;
    case 4:
        STORE(uint32_t, bits);
        break;
    default:
        STORE(uint64_t, bits);
        break;
    }
}

static inline void store_float(void *element, int dtype, float value)
{
    switch (dtype) {
    case F16:
        STORE(uint16_t, small_from_float(value, &FORMAT_F16));
        break;
    case BF16:
        STORE(uint16_t, small_from_float(value, &FORMAT_BF16));
        break;
    case F8_E5M2:
        STORE(uint8_t, small_from_float(value, &FORMAT_E5M2));
        break;
    case F8_E4M3:
        STORE(uint8_t, small_from_float(value, &FORMAT_E4M3));
        break;
    default:
        STORE(float, value);
        break;
    }
}

void number_store(void *element, int dtype, struct number value)
{
    if (fits_float(dtype)) {
        store_float(element, dtype, number_float(value)); /* as torch does, also from double */
        return;
    }
    switch (dtype) {
    case F64:
        STORE(double, number_real(value));
        break;
    case C64: {
        float parts[2] = {number_float(value), (float)value.imaginary};
        memcpy(element, parts, sizeof parts);
        break;
    }
    case C128: {
        double parts[2] = {number_real(value), value.imaginary};
        memcpy(element, parts, sizeof parts);
        break;
    }
    case BOOL:
        STORE(uint8_t, number_is_nonzero(value));
        break;
    default:
        store_integer(element, dtype, number_integer_bits(value));
        break;
    }
}

void number_convert(char *to, int64_t to_step, int to_dtype, const char *from, int64_t from_step,
                    int from_dtype, int64_t count)
{
    if (fits_float(from_dtype) && fits_float(to_dtype)) {
        for (int64_t i = 0; i < count; i++) {
            store_float(to + i * to_step, to_dtype, load_float(from + i * from_step, from_dtype));
        }
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        number_store(to + i * to_step, to_dtype, number_load(from + i * from_step, from_dtype));
    }
}

struct number number_as(struct number value, int dtype)
{
    unsigned char element[LARGEST_ELEMENT];
    number_store(element, dtype, value);
    return number_load(element, dtype);
}
