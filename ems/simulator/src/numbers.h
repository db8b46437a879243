/* One element of a tensor as a number, whatever its format. */
#ifndef EMS_SIM_NUMBERS_H
#define EMS_SIM_NUMBERS_H
#include "sim.h"

/* aclDataType of the public ACL headers */
enum dtype {
    F32 = 0,
    F16 = 1,
    I8 = 2,
    I32 = 3,
    U8 = 4,
    I16 = 6,
    U16 = 7,
    U32 = 8,
    I64 = 9,
    U64 = 10,
    F64 = 11,
    BOOL = 12,
    C64 = 16,
    C128 = 17,
    BF16 = 27,
    C32 = 33,
    HIF8 = 34,
    F8_E5M2 = 35,
    F8_E4M3 = 36,
    F8_E8M0 = 37
};

enum { LARGEST_ELEMENT = 16 };

/* The order matters: arithmetic on two kinds happens in the later one. */
enum category { IS_BOOL, IS_INTEGER, IS_REAL, IS_COMPLEX };

enum number_kind {
    INTEGER,  /* `integer` holds it */
    UNSIGNED, /* `integer` holds its bits; only 64-bit unsigned elements need this */
    FLOATING  /* `real` and `imaginary` hold it */
};

struct number {
    enum number_kind kind;
    int64_t integer;
    double real;
    double imaginary;
};

size_t dtype_size(int dtype);              /* bytes of an element, 0 for an unknown type */
bool dtype_has_numbers(int dtype);         /* false: elements can be moved but not read */
enum category dtype_category(int dtype);
int dtype_promote(int left, int right);    /* the type in which two tensors meet, as in torch */
int dtype_promote_scalar(int tensor, int scalar); /* a scalar only raises the category */

struct number number_of_integer(int64_t value);
struct number number_of_real(double value);
struct number number_load(const void *element, int dtype);
void number_store(void *element, int dtype, struct number value);
/* a row of elements; steps in bytes */
void number_convert(char *to, int64_t to_step, int to_dtype, const char *from, int64_t from_step,
                    int from_dtype, int64_t count);
struct number number_as(struct number value, int dtype); /* rounded to what dtype can hold */
double number_real(struct number value);
bool number_is_nonzero(struct number value);
bool number_is_nan(struct number value);
bool number_equal(struct number left, struct number right);
bool number_less(struct number left, struct number right);

#endif
