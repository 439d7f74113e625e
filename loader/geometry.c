#include "loader/geometry.h"

#include "control/parts.h"
#include "loader/order.h"
#include "loader/resize.h"

#include <math.h>
#include <string.h>

/* ---- matrices ---- */

void geometry_multiply(const double a[9], const double b[9], double c[9])
{
    double out[9];
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++)
            out[3 * i + j] = a[3 * i] * b[j] + a[3 * i + 1] * b[3 + j] + a[3 * i + 2] * b[6 + j];
    memcpy(c, out, sizeof out);
}

void geometry_invert(const double m[9], double inverse[9])
{
    double a[9] = {
        m[4] * m[8] - m[5] * m[7], m[2] * m[7] - m[1] * m[8], m[1] * m[5] - m[2] * m[4],
        m[5] * m[6] - m[3] * m[8], m[0] * m[8] - m[2] * m[6], m[2] * m[3] - m[0] * m[5],
        m[3] * m[7] - m[4] * m[6], m[1] * m[6] - m[0] * m[7], m[0] * m[4] - m[1] * m[3],
    };
    double det = m[0] * a[0] + m[1] * a[3] + m[2] * a[6];
    if (fabs(det) < 1e-12) {
        const double nowhere[9] = {0, 0, INFINITY, 0, 0, INFINITY, 0, 0, 1};
        memcpy(inverse, nowhere, sizeof nowhere);
        return;
    }
    for (int i = 0; i < 9; i++)
        inverse[i] = a[i] / det;
}

static double radians(double degrees)
{
    return degrees * (3.14159265358979323846 / 180.0);
}

/* M = T S R P C with the draws in facts/yolo.md 5.4's order. */
static void geometry_affine(geometry_view_t *v, const options_t *o, philox_t *draws, uint32_t side)
{
    double px = philox_range(draws, -o->perspective, o->perspective);
    double py = philox_range(draws, -o->perspective, o->perspective);
    double angle = radians(philox_range(draws, -o->degrees, o->degrees));
    double scale = philox_range(draws, 1 - o->scale, 1 + o->scale);
    double shear_x = tan(radians(philox_range(draws, -o->shear, o->shear)));
    double shear_y = tan(radians(philox_range(draws, -o->shear, o->shear)));
    double move_x = philox_range(draws, 0.5 - o->translate, 0.5 + o->translate) * side;
    double move_y = philox_range(draws, 0.5 - o->translate, 0.5 + o->translate) * side;
    double alpha = scale * cos(angle), beta = scale * sin(angle);
    const double c[9] = {1, 0, -v->canvas_width / 2.0, 0, 1, -v->canvas_height / 2.0, 0, 0, 1};
    const double p[9] = {1, 0, 0, 0, 1, 0, px, py, 1};
    const double r[9] = {alpha, beta, 0, -beta, alpha, 0, 0, 0, 1};
    const double s[9] = {1, shear_x, 0, shear_y, 1, 0, 0, 0, 1};
    const double t[9] = {1, 0, move_x, 0, 1, move_y, 0, 0, 1};
    double m[9];
    geometry_multiply(p, c, m);
    geometry_multiply(r, m, m);
    geometry_multiply(s, m, m);
    geometry_multiply(t, m, v->forward);
    geometry_invert(v->forward, v->inverse);
    v->scale = scale;
    v->perspective = o->perspective != 0;
    if (!v->perspective) {
        /* The adjugate leaves a rounding error where the affine row is exact. */
        v->inverse[6] = v->inverse[7] = 0;
        v->inverse[8] = 1;
    }
}

/* ---- what of a tile can be seen ---- */

static int32_t clamp_int(double x, int32_t lo, int32_t hi)
{
    return !(x > lo) ? lo : x > hi ? hi : (int32_t)x;
}

/* Canvas rectangle (x1 y1 x2 y2, doubles) around everything that an output pixel interpolates from.
 * The output square maps to a quadrangle, so its corners bound it; unless the horizon crosses it.
 */
static void geometry_seen(const geometry_view_t *v, uint32_t side, double box[4])
{
    const double *m = v->inverse;
    box[0] = box[1] = INFINITY;
    box[2] = box[3] = -INFINITY;
    for (int corner = 0; corner < 4; corner++) {
        double x = corner & 1 ? side : 0, y = corner & 2 ? side : 0;
        double w = m[6] * x + m[7] * y + m[8];
        if (w < 1e-6) {
            box[0] = box[1] = -INFINITY;
            box[2] = box[3] = INFINITY;
            return;
        }
        double cx = (m[0] * x + m[1] * y + m[2]) / w, cy = (m[3] * x + m[4] * y + m[5]) / w;
        box[0] = fmin(box[0], cx);
        box[1] = fmin(box[1], cy);
        box[2] = fmax(box[2], cx);
        box[3] = fmax(box[3], cy);
    }
}

static void geometry_need(geometry_view_t *v, uint32_t side)
{
    double box[4];
    geometry_seen(v, side, box);
    for (uint32_t i = 0; i < v->n_tiles; i++) {
        geometry_tile_t *t = &v->tiles[i];
        /* Two pixels more on each side: the right-hand neighbour of bilinear, and rounding. */
        t->need[0] = clamp_int(floor(box[0]) - 2, t->x1, t->x2) - t->off_x;
        t->need[1] = clamp_int(floor(box[1]) - 2, t->y1, t->y2) - t->off_y;
        t->need[2] = clamp_int(ceil(box[2]) + 3, t->x1, t->x2) - t->off_x;
        t->need[3] = clamp_int(ceil(box[3]) + 3, t->y1, t->y2) - t->off_y;
    }
}

/* ---- views ---- */

static int32_t min_int(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t max_int(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* Puts a loaded picture at one of the four places around the centre (facts/yolo.md 5.3). */
static void geometry_place(geometry_tile_t *t, int place, int32_t xc, int32_t yc, int32_t canvas)
{
    int32_t w = (int32_t)t->width, h = (int32_t)t->height;
    int left = place == 0 || place == 2, upper = place < 2;
    t->x1 = left ? max_int(xc - w, 0) : xc;
    t->x2 = left ? xc : min_int(xc + w, canvas);
    t->y1 = upper ? max_int(yc - h, 0) : yc;
    t->y2 = upper ? yc : min_int(yc + h, canvas);
    /* Each touches the centre: the left ones with their right side, and so on. */
    t->off_x = left ? xc - w : xc;
    t->off_y = upper ? yc - h : yc;
}

static void geometry_load(const geometry_input_t *in, geometry_tile_t *t, uint32_t sample)
{
    uint32_t width = 0, height = 0;
    t->sample = sample;
    in->size(in->user, sample, &width, &height);
    resize_load_size(width, height, in->imgsz, &t->width, &t->height);
}

static void geometry_view(const geometry_input_t *in, geometry_view_t *v, uint32_t sample,
                          philox_purpose_t mosaic_purpose, philox_purpose_t affine_purpose)
{
    philox_t mosaic = philox_stream(in->seed, in->epoch, in->position, mosaic_purpose);
    philox_t affine = philox_stream(in->seed, in->epoch, in->position, affine_purpose);
    double side = in->imgsz, chance = in->options->mosaic;
    geometry_load(in, &v->tiles[0], sample);
    if (in->mosaic && chance > 0 && philox_unit(&mosaic) <= chance) {
        int32_t canvas = 2 * (int32_t)in->imgsz;
        int32_t yc = (int32_t)philox_range(&mosaic, side / 2, 3 * side / 2);
        int32_t xc = (int32_t)philox_range(&mosaic, side / 2, 3 * side / 2);
        uint32_t window = order_window(in->window, in->n);
        v->n_tiles = 4;
        v->canvas_width = v->canvas_height = canvas;
        for (int i = 1; i < 4; i++)
            geometry_load(in, &v->tiles[i],
                          order_partner(in->seed, in->epoch, in->position, in->n, window, &mosaic));
        for (int i = 0; i < 4; i++)
            geometry_place(&v->tiles[i], i, xc, yc, canvas);
    } else {
        geometry_tile_t *t = &v->tiles[0];
        v->n_tiles = 1;
        v->canvas_width = t->x2 = (int32_t)t->width;
        v->canvas_height = t->y2 = (int32_t)t->height;
    }
    geometry_affine(v, in->options, &affine, in->imgsz);
    geometry_need(v, in->imgsz);
}

/* Beta(32, 32) as the median of 63 uniform draws: the k-th smallest of n is Beta(k, n + 1 - k). */
static double geometry_beta32(philox_t *draws)
{
    enum { DRAWS = 63 };
    double u[DRAWS];
    for (int i = 0; i < DRAWS; i++) {
        double x = philox_unit(draws);
        int k = i;
        for (; k > 0 && u[k - 1] > x; k--)
            u[k] = u[k - 1];
        u[k] = x;
    }
    return u[DRAWS / 2];
}

void geometry_draw(const geometry_input_t *in, geometry_t *g)
{
    const options_t *o = in->options;
    memset(g, 0, sizeof *g);
    g->side = in->imgsz;
    g->n_views = 1;
    g->mix = 1;
    uint32_t own = order_sample(in->seed, in->epoch, in->position, in->n);
    geometry_view(in, &g->views[0], own, PHILOX_MOSAIC, PHILOX_AFFINE);

    philox_t mixup = philox_stream(in->seed, in->epoch, in->position, PHILOX_MIXUP);
    if (in->mosaic && o->mixup > 0 && philox_unit(&mixup) <= o->mixup) {
        uint32_t window = order_window(in->window, in->n);
        uint32_t partner = order_partner(in->seed, in->epoch, in->position, in->n, window, &mixup);
        g->n_views = 2;
        g->mix = geometry_beta32(&mixup);
        geometry_view(in, &g->views[1], partner, PHILOX_MIXUP_MOSAIC, PHILOX_MIXUP_AFFINE);
    }

    philox_t hsv = philox_stream(in->seed, in->epoch, in->position, PHILOX_HSV);
    const double gains[3] = {o->hsv_h, o->hsv_s, o->hsv_v};
    for (int i = 0; i < 3; i++) {
        g->hsv[i] = philox_range(&hsv, -1, 1) * gains[i];
        g->hsv_active |= gains[i] != 0;
    }

    philox_t flip = philox_stream(in->seed, in->epoch, in->position, PHILOX_FLIP);
    g->flip_y = philox_unit(&flip) < o->flipud;
    g->flip_x = philox_unit(&flip) < o->fliplr;
    g->bgr = philox_unit(&flip) < o->bgr;
}

/* ---- validation ---- */

/* Python's round: half to even. */
static uint32_t round_even(double x)
{
    return x < 0 ? 0 : (uint32_t)lrint(x);
}

void geometry_letterbox(uint32_t file_width, uint32_t file_height, uint32_t imgsz, uint32_t width,
                        uint32_t height, geometry_letterbox_t *box)
{
    resize_load_size(file_width, file_height, imgsz, &box->loaded_width, &box->loaded_height);
    double w = box->loaded_width, h = box->loaded_height;
    double r = fmin(fmin(height / h, width / w), 1.0);
    box->width = round_even(w * r);
    box->height = round_even(h * r);
    box->width = box->width < 1 ? 1 : box->width > width ? width : box->width;
    box->height = box->height < 1 ? 1 : box->height > height ? height : box->height;
    box->left = round_even((width - box->width) / 2.0 - 0.1);
    box->top = round_even((height - box->height) / 2.0 - 0.1);
    uint32_t longest = file_width > file_height ? file_width : file_height;
    box->ratio = (float)((double)imgsz / longest * r);
}

void geometry_fit(uint32_t part_width, uint32_t part_height, uint32_t imgsz, uint32_t width,
                  uint32_t height, geometry_letterbox_t *box)
{
    uint32_t longest = part_width > part_height ? part_width : part_height;
    parts_fit(part_width, part_height, imgsz, &box->loaded_width, &box->loaded_height);
    box->width = box->loaded_width;
    box->height = box->loaded_height;
    box->left = round_even((width - box->width) / 2.0 - 0.1);
    box->top = round_even((height - box->height) / 2.0 - 0.1);
    box->ratio = (float)((double)imgsz / longest);
}
