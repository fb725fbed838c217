/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/cuda/core/lines.h"
#include "base/number.h"

#include <stdio.h>

weftStatus_t lines_check(const struct lines *lines, const struct descriptor *op) {
    if (lines->count > INT32_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: it has %lld lines along its axis, kernels count to 2^31.",
             descriptor_label(op), (long long)lines->count);
    return WEFT_STATUS_SUCCESS;
}

/* The slowest coordinate is what remains. */
void emit_lines(struct kernel_source *source, const struct lines *lines) {
    char name[32];
    emit_number(source, lines->count, "lines");
    for (int d = 1; d < lines->rank; d++) {
        snprintf(name, sizeof name, "line_extent%d", d);
        emit_divisor(source, lines->extents[d], name);
    }
}

void emit_lines_of(struct kernel_source *source, const struct lines *lines, int k, const struct tensor *tensor,
                   const char *name) {
    char text[48];
    weftDataType_t type = tensor ? (weftDataType_t)tensor->type : WEFT_DATA_FLOAT;
    snprintf(text, sizeof text, "%s_t", name);
    emit_type(source, text, type);
    snprintf(text, sizeof text, "%s_step", name);
    if (tensor) {
        emit_pointer(source, type, graph_find_value(source->graph, tensor), 0, name);
    } else {
        snprintf(text, sizeof text, "%s_t", name);
        emit_scratch(source, text, 0, name);
    }
    snprintf(text, sizeof text, "%s_step", name);
    emit_number(source, lines->steps[k], text);
    text_add(&source->code, "DEVICE i64 %s_line(const arguments &p, u32 line) {\n    i64 at = 0;\n", name);
    for (int d = lines->rank; d-- > 1;) {
        snprintf(text, sizeof text, "%s_stride%d", name, d);
        emit_number(source, lines->strides[k][d], text);
        text_add(&source->code,
                 "    {\n        const u32 rest = divide(line, p.line_extent%d);\n        at += (i64)(line - rest * "
                 "p.line_extent%d.value) * p.%s;\n        line = rest;\n    }\n",
                 d, d, text);
    }
    if (lines->rank) {
        snprintf(text, sizeof text, "%s_stride0", name);
        emit_number(source, lines->strides[k][0], text);
        text_add(&source->code, "    at += (i64)line * p.%s;\n", text);
    }
    text_add(&source->code, "    return at;\n}\n\n");
}

int64_t lines_run(const struct lines *lines, int k, const struct tensor *tensor, int64_t most) {
    int64_t bytes = dtype_bytes((weftDataType_t)tensor->type, 1), run = most;
    if (lines->steps[k] != 1)
        return 1;
    while (run > 1 && tensor->alignment % min64(run * bytes, 16) != 0)
        run /= 2;
    for (int d = 0; d < lines->rank; d++)
        run = gcd64(run, lines->strides[k][d]);
    return run;
}
