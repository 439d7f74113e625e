/* The CPU device's table of operations. */
#include "kernels/cpu/cpu.h"

static const k_ops_t cpu_table = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .reserve = cpu_reserve,
    .memory = cpu_memory,
    .error = cpu_error,
    .upload = cpu_upload,
    .download = cpu_download,
    .move = cpu_move,
    .zero = cpu_zero,
    .wait = cpu_wait,
    .image = cpu_image,
    .conv_work = cpu_conv_work,
    .conv = cpu_conv,
    .conv_dx = cpu_conv_dx,
    .conv_dw = cpu_conv_dw,
    .dwconv = cpu_dwconv,
    .dwconv_dx = cpu_dwconv_dx,
    .dwconv_dw = cpu_dwconv_dw,
    .bn_stats = cpu_bn_stats,
    .bn_finish = cpu_bn_finish,
    .bn_apply = cpu_bn_apply,
    .bn_bwd_stats = cpu_bn_bwd_stats,
    .bn_bwd_apply = cpu_bn_bwd_apply,
    .maxpool = cpu_maxpool,
    .maxpool_dx = cpu_maxpool_dx,
    .upsample = cpu_upsample,
    .upsample_dx = cpu_upsample_dx,
    .copy = cpu_copy,
    .attention_work = cpu_attention_work,
    .attention = cpu_attention,
    .attention_dx = cpu_attention_dx,
    .detect_loss_work = cpu_detect_loss_work,
    .detect_loss = cpu_detect_loss,
    .nms_work = cpu_nms_work,
    .nms = cpu_nms,
    .grad_norm = cpu_grad_norm,
    .sgd = cpu_sgd,
    .adamw = cpu_adamw,
    .ema = cpu_ema,
};

const k_ops_t *k_cpu_ops(void)
{
    return &cpu_table;
}
