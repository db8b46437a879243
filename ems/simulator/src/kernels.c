/* Loops over strided memory: opening, broadcasting, walking, copying, filling. */
#include "kernels.h"

#include <string.h>

/* ---- views ---- */

aclError view_open(struct view *view, const char *operator)
{
    static char nothing[LARGEST_ELEMENT]; /* an address to count from where there are no elements */
    int64_t size = (int64_t)dtype_size(view->dtype);
    int64_t lowest;
    int64_t highest;
    if (view_numel(view) == 0) {
        memset(view->strides, 0, sizeof view->strides);
        view->data = nothing;
        view->offset = 0;
        return ACL_OK;
    }
    if (!view_extent(view, &lowest, &highest)) {
        return sim_fail(ACL_RT_VECTOR_CORE_EXCEPTION, "%s: a tensor is larger than any memory", operator);
    }
    uintptr_t first = (uintptr_t)view->data + (uintptr_t)(lowest * size);
    char *reached = sim_reach((const void *)first, (size_t)((highest - lowest + 1) * size));
    if (reached == NULL) {
        return sim_fail(ACL_RT_VECTOR_CORE_EXCEPTION,
                        "%s: elements %lld to %lld from %p are not in live device memory", operator,
                        (long long)lowest, (long long)highest, (void *)view->data);
    }
    view->data = reached + (view->offset - lowest) * size;
    view->offset = 0;
    return ACL_OK;
}

bool view_broadcast(struct view *view, const struct view *shape)
{
    struct view seen = *view;
    int missing = shape->ndim - view->ndim;
    if (missing < 0) {
        return false;
    }
    seen.ndim = shape->ndim;
    for (int i = 0; i < shape->ndim; i++) {
        int64_t size = i < missing ? 1 : view->shape[i - missing];
        if (size != 1 && size != shape->shape[i]) {
            return false;
        }
        seen.shape[i] = shape->shape[i];
        seen.strides[i] = size == 1 ? 0 : view->strides[i - missing];
    }
    *view = seen;
    return true;
}

bool shape_broadcast(struct view *shape, const struct view *other)
{
    struct view grown = {.ndim = shape->ndim > other->ndim ? shape->ndim : other->ndim};
    for (int i = 1; i <= grown.ndim; i++) { /* dimensions counted from the last */
        int64_t mine = i > shape->ndim ? 1 : shape->shape[shape->ndim - i];
        int64_t theirs = i > other->ndim ? 1 : other->shape[other->ndim - i];
        if (mine != theirs && mine != 1 && theirs != 1) {
            return false;
        }
        grown.shape[grown.ndim - i] = mine == 1 ? theirs : mine;
    }
    shape->ndim = grown.ndim;
    memcpy(shape->shape, grown.shape, sizeof grown.shape);
    return true;
}

static void move_origin(struct view *view, int dim, int64_t position)
{
    view->data += position * view->strides[dim] * (int64_t)dtype_size(view->dtype);
}

struct view view_select(const struct view *view, int dim, int64_t position)
{
    struct view selected = *view;
    move_origin(&selected, dim, position);
    selected.ndim--;
    for (int i = dim; i < selected.ndim; i++) {
        selected.shape[i] = view->shape[i + 1];
        selected.strides[i] = view->strides[i + 1];
    }
    return selected;
}

struct view view_narrow(const struct view *view, int dim, int64_t start, int64_t length)
{
    struct view narrowed = *view;
    move_origin(&narrowed, dim, start);
    narrowed.shape[dim] = length;
    return narrowed;
}

/* ---- walking ---- */

void walk_start(struct walk *walk, const struct view *const views[], int count)
{
    walk->ndim = views[0]->ndim;
    walk->views = count;
    for (int dim = 0; dim < walk->ndim; dim++) {
        walk->shape[dim] = views[0]->shape[dim];
        walk->position[dim] = 0;
    }
    for (int i = 0; i < count; i++) {
        int64_t size = (int64_t)dtype_size(views[i]->dtype);
        walk->at[i] = views[i]->data;
        for (int dim = 0; dim < walk->ndim; dim++) {
            walk->steps[i][dim] = views[i]->strides[dim] * size;
        }
    }
}

static void walk_move(struct walk *walk, int dim, int64_t by)
{
    walk->position[dim] += by;
    for (int i = 0; i < walk->views; i++) {
        walk->at[i] += by * walk->steps[i][dim];
    }
}

void walk_next(struct walk *walk)
{
    for (int dim = walk->ndim - 1; dim >= 0; dim--) {
        if (walk->position[dim] + 1 < walk->shape[dim]) {
            walk_move(walk, dim, 1);
            return;
        }
        walk_move(walk, dim, -walk->position[dim]);
    }
}

/* ---- rows ---- */

static void swap_dims(struct walk *walk, int left, int right)
{
    int64_t kept = walk->shape[left];
    walk->shape[left] = walk->shape[right];
    walk->shape[right] = kept;
    for (int i = 0; i < walk->views; i++) {
        kept = walk->steps[i][left];
        walk->steps[i][left] = walk->steps[i][right];
        walk->steps[i][right] = kept;
    }
}

/* the smallest step of the first view innermost */
static void sort_dims(struct walk *walk)
{
    for (int i = 1; i < walk->ndim; i++) {
        for (int j = i; j > 0 && walk->steps[0][j - 1] < walk->steps[0][j]; j--) {
            swap_dims(walk, j - 1, j);
        }
    }
}

static bool continues(const struct walk *walk, int outer, int inner)
{
    for (int i = 0; i < walk->views; i++) {
        if (walk->steps[i][outer] != walk->steps[i][inner] * walk->shape[inner]) {
            return false;
        }
    }
    return true;
}

static void copy_dim(struct walk *walk, int to, int from)
{
    walk->shape[to] = walk->shape[from];
    for (int i = 0; i < walk->views; i++) {
        walk->steps[i][to] = walk->steps[i][from];
    }
}

/* joins dimensions that continue each other in every view and drops those of size 1 */
static void merge_dims(struct walk *walk)
{
    int merged = 0;
    for (int dim = 0; dim < walk->ndim; dim++) {
        if (walk->shape[dim] == 1) {
            continue;
        }
        if (merged > 0 && continues(walk, merged - 1, dim)) {
            int64_t outer = walk->shape[merged - 1];
            copy_dim(walk, merged - 1, dim);
            walk->shape[merged - 1] *= outer;
        } else {
            copy_dim(walk, merged, dim);
            merged++;
        }
    }
    walk->ndim = merged;
}

void for_each_row(const struct view *const views[], int count, row_function row, void *context)
{
    struct walk walk;
    int64_t steps[MAX_WALKED];
    int64_t length = 1;
    int64_t rows = 1;
    if (view_numel(views[0]) == 0) {
        return;
    }
    walk_start(&walk, views, count);
    sort_dims(&walk);
    merge_dims(&walk);
    if (walk.ndim > 0) {
        walk.ndim--;
        length = walk.shape[walk.ndim];
    }
    for (int i = 0; i < count; i++) {
        steps[i] = length > 1 ? walk.steps[i][walk.ndim] : (int64_t)dtype_size(views[i]->dtype);
    }
    for (int dim = 0; dim < walk.ndim; dim++) {
        rows *= walk.shape[dim];
    }
    for (int64_t i = 0; i < rows; i++) {
        row(walk.at, steps, length, context);
        walk_next(&walk);
    }
}

/* ---- filling ---- */

enum { FILL_NBYTES = 4096 };

/* copies the element at `to` to the whole contiguous row that starts there */
static void repeat_first(char *to, int64_t size, int64_t count)
{
    int64_t total = size * count;
    int64_t filled = size;
    while (filled < total && filled < FILL_NBYTES) {
        int64_t part = filled < total - filled ? filled : total - filled;
        memcpy(to + filled, to, (size_t)part);
        filled += part;
    }
    while (filled < total) { /* from a block that stays in the cache */
        int64_t part = filled < FILL_NBYTES ? filled : FILL_NBYTES;
        part = part < total - filled ? part : total - filled;
        memcpy(to + filled, to, (size_t)part);
        filled += part;
    }
}

static bool is_one_byte_repeated(const char *element, int64_t size)
{
    return size == 1 || memcmp(element, element + 1, (size_t)size - 1) == 0;
}

struct filling {
    char element[LARGEST_ELEMENT];
    int64_t size;
};

static void fill_row(char *const at[], const int64_t steps[], int64_t count, void *context)
{
    const struct filling *filling = context;
    int64_t size = filling->size;
    if (steps[0] == size && is_one_byte_repeated(filling->element, size)) {
        memset(at[0], filling->element[0], (size_t)(size * count));
    } else if (steps[0] == size) {
        memcpy(at[0], filling->element, (size_t)size);
        repeat_first(at[0], size, count);
    } else {
        for (int64_t i = 0; i < count; i++) {
            memcpy(at[0] + i * steps[0], filling->element, (size_t)size);
        }
    }
}

void view_fill(const struct view *view, struct number value)
{
    struct filling filling = {.size = (int64_t)dtype_size(view->dtype)};
    number_store(filling.element, view->dtype, value);
    for_each_row(&view, 1, fill_row, &filling);
}

/* ---- copying ---- */

struct copying {
    int to;
    int from;
    int64_t size;
};

/* a constant size lets the compiler turn the copy of an element into one move */
#define COPY_STRIDED(size)                                                     \
    for (int64_t i = 0; i < count; i++) {                                      \
        memcpy(at[0] + i * steps[0], at[1] + i * steps[1], (size));            \
    }                                                                          \
    break

static void copy_strided_row(char *const at[], const int64_t steps[], int64_t count, int64_t size)
{
    switch (size) {
    case 1:
        COPY_STRIDED(1);
    case 2:
        COPY_STRIDED(2);
    case 4:
        COPY_STRIDED(4);
    case 8:
        COPY_STRIDED(8);
    default:
        COPY_STRIDED(LARGEST_ELEMENT);
    }
}

static void copy_row(char *const at[], const int64_t steps[], int64_t count, void *context)
{
    const struct copying *copying = context;
    int64_t size = copying->size;
    if (steps[0] == size && steps[1] == size) {
        memmove(at[0], at[1], (size_t)(size * count));
    } else if (steps[0] == size && steps[1] == 0) {
        memmove(at[0], at[1], (size_t)size);
        repeat_first(at[0], size, count);
    } else {
        copy_strided_row(at, steps, count, size);
    }
}

static void convert_row(char *const at[], const int64_t steps[], int64_t count, void *context)
{
    const struct copying *copying = context;
    number_convert(at[0], steps[0], copying->to, at[1], steps[1], copying->from, count);
}

void view_copy(const struct view *destination, const struct view *source)
{
    struct copying copying = {
        .to = destination->dtype,
        .from = source->dtype,
        .size = (int64_t)dtype_size(destination->dtype),
    };
    const struct view *const views[] = {destination, source};
    for_each_row(views, 2, copying.to == copying.from ? copy_row : convert_row, &copying);
}
