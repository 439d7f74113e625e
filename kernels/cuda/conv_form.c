/* The forms in which a convolution reaches the library (conv_run.h). */
#include "kernels/cuda/conv_run.h"

enum {
    FORM_CHANNELS = 8, /* half formats: 16 bytes, what tensor cores' loads take */
    FORM_ALIGN = 16,
};

static uint64_t place(uint64_t *total, uint64_t bytes)
{
    const uint64_t at = *total;
    *total += cuda_align(bytes);
    return at;
}

static int32_t padded(int32_t c, int32_t dtype)
{
    return dtype == K_F32 ? c : (c + FORM_CHANNELS - 1) / FORM_CHANNELS * FORM_CHANNELS;
}

/* The greatest divisor of n whose images stay within `most`, at least 1. */
static int32_t group_of(int32_t n, uint64_t image, uint64_t most)
{
    for (int32_t m = n; m > 1; m--)
        if (n % m == 0 && (uint64_t)m * image <= most)
            return m;
    return 1;
}

conv_layout_t conv_layout(const conv_limits_t *limits, const conv_shape_t *s)
{
    const uint64_t size = cuda_size((k_dtype_t)s->dtype), taps = (uint64_t)s->k * (uint64_t)s->k;
    const uint64_t out =
        (uint64_t)conv_out(s->h, s->k, s->s) * (uint64_t)conv_out(s->w, s->k, s->s);
    conv_layout_t l = {.c1 = padded(s->c1, s->dtype), .c2 = padded(s->c2, s->dtype)};
    const uint64_t x_image = (uint64_t)s->h * (uint64_t)s->w * (uint64_t)l.c1 * size;
    const uint64_t y_image = out * (uint64_t)l.c2 * size;
    const uint64_t weights = taps * (uint64_t)l.c1 * (uint64_t)l.c2;
    l.images = group_of(s->n, x_image + y_image, limits->copies);
    l.x = place(&l.total, (uint64_t)l.images * x_image);
    l.y = place(&l.total, (uint64_t)l.images * y_image);
    l.w = place(&l.total, weights * size);
    l.dw = place(&l.total, weights * size);
    l.space_bytes = (uint64_t)s->n * (x_image + y_image) + weights * sizeof(float);
    if (l.space_bytes < limits->space_least)
        l.space_bytes = limits->space_least;
    if (l.space_bytes > limits->space_most)
        l.space_bytes = limits->space_most;
    l.space = place(&l.total, l.space_bytes);
    return l;
}

/* What goes through work in CONV_PACKED. */
typedef struct {
    int x, y, w;
} packs_t;

static packs_t packs_of(const conv_shape_t *s, const conv_layout_t *l)
{
    const int pads = l->c1 != s->c1 || l->c2 != s->c2;
    return (packs_t){
        .x = s->xld != s->c1 || s->c1 != l->c1 || s->xalign < FORM_ALIGN ||
             (s->direction == CONV_DX && s->acc),
        .y = s->yld != s->c2 || s->c2 != l->c2 || s->yalign < FORM_ALIGN,
        .w = pads || (s->direction != CONV_DW && s->walign < FORM_ALIGN),
    };
}

int conv_form_packs(const conv_limits_t *limits, const conv_shape_t *s)
{
    const conv_layout_t l = conv_layout(limits, s);
    const packs_t p = packs_of(s, &l);
    return p.x || p.y || p.w;
}

/* The alignment that every group's first image has, if the first one's is `align`. */
static int32_t group_align(int32_t align, uint64_t group_bytes, int32_t groups)
{
    while (groups > 1 && group_bytes % (uint64_t)align != 0)
        align /= 2;
    return align;
}

static uint64_t x_group(const conv_shape_t *s, int32_t images)
{
    return (uint64_t)images * (uint64_t)s->h * (uint64_t)s->w * (uint64_t)s->xld *
           cuda_size((k_dtype_t)s->dtype);
}

static uint64_t y_group(const conv_shape_t *s, int32_t images)
{
    return (uint64_t)images * (uint64_t)conv_out(s->h, s->k, s->s) *
           (uint64_t)conv_out(s->w, s->k, s->s) * (uint64_t)s->yld * cuda_size((k_dtype_t)s->dtype);
}

conv_shape_t conv_form_shape(const conv_limits_t *limits, const conv_shape_t *s, conv_form_t form)
{
    const conv_layout_t l = conv_layout(limits, s);
    const packs_t packs = form == CONV_PACKED ? packs_of(s, &l) : (packs_t){0};
    const uint64_t size = cuda_size((k_dtype_t)s->dtype);
    conv_shape_t f = *s;
    if (form == CONV_PACKED) {
        f.n = l.images;
        f.c1 = l.c1;
        f.c2 = l.c2;
        f.acc = 0;
    } else {
        const uint64_t x = x_group(s, 1) / size, y = y_group(s, 1) / size;
        f.n = group_of(s->n, x > y ? x : y, limits->elements);
    }
    const int32_t groups = s->n / f.n;
    f.xalign = packs.x ? FORM_ALIGN : group_align(s->xalign, x_group(s, f.n), groups);
    f.yalign = packs.y ? FORM_ALIGN : group_align(s->yalign, y_group(s, f.n), groups);
    f.walign = packs.w || s->direction == CONV_DW ? FORM_ALIGN : s->walign;
    f.xld = packs.x ? l.c1 : s->xld;
    f.yld = packs.y ? l.c2 : s->yld;
    return f;
}

/* One call in one form: addresses of the current group. */
typedef struct {
    cuda_dev_t *dev;
    const conv_call_t *call;
    const conv_choice_t *choice;
    conv_layout_t l;
    packs_t packs;
    int32_t images;
    k_tensor_t x, y; /* the group's images where they lie */
} form_t;

static char *work_at(const form_t *f, uint64_t offset)
{
    return (char *)cuda_ptr(f->dev, f->call->work) + offset;
}

static int pack_tensor(const form_t *f, const k_tensor_t *t, uint64_t offset, int32_t c)
{
    const int64_t rows = cuda_pixels(t);
    return cuda_conv_pack(f->dev, t->dtype, cuda_ptr(f->dev, t->at), rows, t->c, t->ld,
                          work_at(f, offset), rows, c);
}

/* [c2][taps][c1] to [c2 padded][taps][c1 padded]. */
static int pack_weights(const form_t *f)
{
    const k_conv_t *p = f->call->p;
    const int64_t taps = (int64_t)p->k * p->k;
    return cuda_conv_pack(f->dev, f->x.dtype, cuda_ptr(f->dev, f->call->w), p->c2 * taps, p->c1,
                          p->c1, work_at(f, f->l.w), f->l.c2 * taps, f->l.c1);
}

/* A copy's result to where it belongs. */
static int unpack(const form_t *f, uint64_t offset, int32_t ld, const k_tensor_t *to, int acc)
{
    k_tensor_t from = *to;
    from.at = f->call->work + offset;
    from.ld = ld;
    return cuda_copy(&f->dev->base, &from, to, acc);
}

static int add_gradient(const form_t *f)
{
    const k_conv_t *p = f->call->p;
    const int64_t rows = (int64_t)p->c2 * p->k * p->k;
    const void *from = work_at(f, f->l.dw);
    if (f->packs.w)
        return cuda_conv_add_rows(f->dev, f->x.dtype, from, f->l.c1, f->call->dw, rows, p->c1);
    return cuda_add_weights(f->dev, from, f->x.dtype, f->call->dw, (uint64_t)(rows * p->c1));
}

/* One group of images: copies, the library's plan, the result. */
static int run_group(const form_t *f, int first)
{
    const conv_call_t *c = f->call;
    const int d = c->direction;
    void *x = f->packs.x ? work_at(f, f->l.x) : cuda_ptr(f->dev, f->x.at);
    void *y = f->packs.y ? work_at(f, f->l.y) : cuda_ptr(f->dev, f->y.at);
    void *w = d == CONV_DW ? work_at(f, f->l.dw)
              : f->packs.w ? work_at(f, f->l.w)
                           : cuda_ptr(f->dev, c->w);
    if (f->packs.x && d != CONV_DX && pack_tensor(f, &f->x, f->l.x, f->l.c1) < 0)
        return -1;
    if (f->packs.y && d != CONV_FORWARD && pack_tensor(f, &f->y, f->l.y, f->l.c2) < 0)
        return -1;
    if (f->packs.w && d != CONV_DW && first && pack_weights(f) < 0)
        return -1;
    if (conv_plan_run(&f->dev->conv->graph, f->choice->plan, x, w, y, work_at(f, f->l.space)) < 0) {
        cudaGetLastError(); /* the library's words say more; not for the next launch's check */
        return CONV_REFUSED;
    }
    if (d == CONV_FORWARD)
        return f->packs.y ? unpack(f, f->l.y, f->l.c2, &f->y, 0) : 0;
    if (d == CONV_DX)
        return f->packs.x ? unpack(f, f->l.x, f->l.c1, &f->x, c->acc) : 0;
    return add_gradient(f);
}

int conv_form_run(cuda_dev_t *dev, const conv_call_t *call, const conv_choice_t *choice)
{
    const conv_limits_t *limits = &dev->conv->limits;
    const conv_shape_t *s = &choice->shape, asked = conv_form_shape(limits, s, choice->form);
    form_t f = {.dev = dev,
                .call = call,
                .choice = choice,
                .l = conv_layout(limits, s),
                .images = asked.n,
                .x = *call->x,
                .y = *call->y};
    f.packs = choice->form == CONV_PACKED ? packs_of(s, &f.l) : (packs_t){0};
    f.x.n = f.y.n = f.images;
    for (int32_t i = 0; i < s->n; i += f.images) {
        int rc = run_group(&f, i == 0);
        if (rc == CONV_REFUSED && i > 0) {
            char words[160];
            conv_shape_words(s, words, sizeof words);
            return cuda_fail(dev, "%s: %s", words, dev->conv->graph.why);
        }
        if (rc != 0)
            return rc;
        f.x.at += x_group(s, f.images);
        f.y.at += y_group(s, f.images);
    }
    return 0;
}
