/* Loops over strided memory. They run on a stream's worker, over views that are open. */
#ifndef EMS_SIM_KERNELS_H
#define EMS_SIM_KERNELS_H
#include "tensors.h"

/* as many views as an indexing operator walks at once: an index per dimension, and the values */
enum { MAX_WALKED = MAX_NDIM + 2 };

/* Replaces the address of a view by the one of its first element, as the simulator may touch it;
 * an error naming the operator unless every element lies in live device memory. */
aclError view_open(struct view *view, const char *operator);

/* The view as seen through a larger shape; false when it does not fit. */
bool view_broadcast(struct view *view, const struct view *shape);
/* Grows `shape` to what it and `other` broadcast to; false when they do not. */
bool shape_broadcast(struct view *shape, const struct view *other);
/* The view at one position of a dimension, which is gone. */
struct view view_select(const struct view *view, int dim, int64_t position);
/* Part of a dimension. */
struct view view_narrow(const struct view *view, int dim, int64_t start, int64_t length);

/* A position in views of one shape, in row-major order: at[i] is the element of view i. */
struct walk {
    int ndim;
    int views;
    int64_t shape[MAX_NDIM];
    int64_t position[MAX_NDIM];
    int64_t steps[MAX_WALKED][MAX_NDIM]; /* bytes */
    char *at[MAX_WALKED];
};

void walk_start(struct walk *walk, const struct view *const views[], int count);
void walk_next(struct walk *walk);

/* Calls `row` for pieces of views of one shape that together cover every element once, in an
 * order of its own: at[i] is the first element of view i, steps[i] the bytes to the next. */
typedef void (*row_function)(char *const at[], const int64_t steps[], int64_t count, void *context);

void for_each_row(const struct view *const views[], int count, row_function row, void *context);

/* Copies elements between views of one shape, converting them if their types differ. */
void view_copy(const struct view *destination, const struct view *source);
void view_fill(const struct view *view, struct number value);

#endif
