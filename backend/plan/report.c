/* SPDX-License-Identifier: Apache-2.0 */
/* The plan's report as JSON: its steps, and the reasons for the choice of their families. Frontends format it for
   people, so the keys are stable and numbers are in base units: seconds, bytes, operations. The report knows no
   families; their texts are in the steps. */
#include "base/text.h"
#include "graph/descriptor.h"
#include "plan/plan.h"

#include <string.h>

/* A NULL value is written as null. The caller writes the commas between keys. */
static void add_key(struct text *text, const char *key, const char *value) {
    text_add(text, "\"%s\":", key);
    text_json_string(text, value);
}

/* Includes the comma, because no object starts with a number here. */
static void add_number(struct text *text, const char *key, double value) {
    text_add(text, ",\"%s\":", key);
    text_json_number(text, value);
}

/* As the operations count them; recomputation in a kernel is not included. */
static double step_flops(const struct step *step) {
    double flops = 0;
    for (int i = 0; i < step->region.count; i++)
        flops += op_flops(region_node(&step->region, i)->op);
    return flops;
}

/* kind is the number of the descriptor kind; uids are the user's, or those of inferred tensors. */
static void add_operations(struct text *text, const struct step *step) {
    text_add(text, ",\"operations\":[");
    for (int i = 0; i < step->region.count; i++) {
        const struct node *node = region_node(&step->region, i);
        text_add(text, i ? ",{" : "{");
        add_key(text, "name", descriptor_label(node->op));
        text_add(text, ",\"kind\":%d,\"operands\":[", node->op->schema->kind);
        for (int k = 0; k < node->operand_count; k++)
            text_add(text, "%s{\"uid\":%lld,\"output\":%s}", k ? "," : "",
                     (long long)step->region.graph->values[node->operands[k]].tensor->uid,
                     node->is_output[k] ? "true" : "false");
        text_add(text, "]}");
    }
    text_add(text, "]");
}

/* The relaxations that a step uses, as words. */
static void add_relaxations(struct text *text, const struct step *step) {
    static const char *const words[] = {[RELAX_TF32] = "\"tf32\"",
                                        [RELAX_ORDER] = "\"unordered\"",
                                        [RELAX_TF32 | RELAX_ORDER] = "\"tf32\",\"unordered\""};
    text_add(text, ",\"relaxations\":[%s]", step->used ? words[step->used] : "");
}

/* Writes step s with its memory traffic, scratch and operations. s is also its position in execution order. */
static void add_step(struct text *text, const struct plan *plan, int s) {
    const struct step *step = &plan->draft.steps[s];
    const struct part *part = &plan->draft.cover.parts[s];
    text_add(text, s ? ",{" : "{");
    add_key(text, "family", step->family->name);
    text_add(text, ",");
    add_key(text, "doc", step->family->doc);
    text_add(text, ",");
    add_key(text, "detail", step->detail);
    add_relaxations(text, step);
    add_number(text, "seconds", step->seconds);
    add_number(text, "flops", step_flops(step));
    text_add(text, ",\"bytes\":%lld,\"scratch_bytes\":%lld", (long long)plan->draft.step_bytes[s],
             (long long)step->workspace_bytes);
    add_operations(text, step);
    /* Why the other families do not serve this step: their refusals, or their predicted times. */
    text_add(text, ",\"declined\":[");
    for (int i = 0; i < part->refusal_count; i++) {
        text_add(text, i ? ",{" : "{");
        add_key(text, "family", part->refusals[i].family);
        text_add(text, ",");
        add_key(text, "reason", part->refusals[i].reason);
        text_add(text, "}");
    }
    text_add(text, "]}");
}

/* The uids of the tensors that are read instead of a gathered value, which has no memory. */
static void add_parts(struct text *text, const struct concat_op *parts) {
    text_add(text, ",\"parts\":[");
    for (int64_t k = 0; parts && k < parts->inputs.count; k++)
        text_add(text, k ? ",%lld" : "%lld", (long long)((const struct tensor *)parts->inputs.tensors[k])->uid);
    text_add(text, "]");
}

/* workspace_offset: -1 if the tensor is not in the workspace. */
static void add_value(struct text *text, const struct plan *plan, int v) {
    const struct value *value = &plan->draft.graph->values[v];
    const struct tensor *tensor = value->tensor;
    const struct views *views = &plan->draft.cover.views;
    text_add(text, "{\"uid\":%lld,", (long long)tensor->uid);
    /* null if the user gave no name; labels are not names. */
    add_key(text, "name", tensor->base.label.count ? tensor->base.label.chars : NULL);
    text_add(text, ",\"dims\":%s,\"strides\":%s,", tensor_dims_text(tensor),
             numbers_text(tensor->strides.at, tensor->strides.count));
    text_add(text, "\"ragged\":%s,", tensor->ragged_offset ? "true" : "false");
    add_key(text, "type", dtype_of((weftDataType_t)tensor->type)->name);
    text_add(text, ",\"free\":%s", tensor->is_free ? "true" : "false");
    /* The tensor in whose memory this one is stored (itself if it is no view), and the offset there in bytes. */
    text_add(text, ",\"memory\":%lld,\"offset\":%lld",
             (long long)plan->draft.graph->values[views->memory[v]].tensor->uid, (long long)views->offset[v]);
    add_parts(text, views_gathered(plan->draft.graph, v));
    text_add(text, ",\"alignment\":%lld,\"virtual\":%s,\"by_value\":%s,\"workspace_offset\":%lld,\"written\":%s}",
             (long long)plan_alignment(plan, tensor), tensor->is_virtual ? "true" : "false",
             tensor->is_by_value || tensor->is_constant ? "true" : "false", (long long)plan->draft.value_offset[v],
             value->producer >= 0 ? "true" : "false");
}

/* threads is 0 for a GPU. */
static void add_device(struct text *text, const struct device *device) {
    text_add(text, ",\"device\":{");
    add_key(text, "kind", device_kind_name(device->kind));
    text_add(text, ",\"ordinal\":%d,\"threads\":%d,", (int)device->ordinal, device->threads);
    add_key(text, "name", device->name);
    text_add(text, "}");
}

/* Totals of the plan; seconds are predicted, bytes are the memory traffic of all steps. */
static void add_whole(struct text *text, const struct plan *plan) {
    const struct draft *draft = &plan->draft;
    add_key(text, "graph", descriptor_label(&draft->graph->base));
    text_add(text, ",");
    add_key(text, "engine", draft->engine->name);
    text_add(text, ",");
    add_key(text, "engine_doc", draft->engine->doc);
    text_add(text, ",");
    add_key(text, "tag", plan->tag.chars);
    add_device(text, &draft->device);
    add_number(text, "seconds", draft->seconds);
    add_number(text, "flops", graph_flops(draft->graph));
    text_add(text, ",\"bytes\":%lld,\"workspace_bytes\":%lld,\"least_workspace_bytes\":%lld",
             (long long)draft->moved_bytes, (long long)draft->workspace_bytes, (long long)draft->least_workspace_bytes);
}

/* Generated on each request, because plans do not store the text. */
void plan_write_report(const struct descriptor *descriptor, struct text *json) {
    const struct plan *plan = (const struct plan *)descriptor;
    text_add(json, "{");
    add_whole(json, plan);
    text_add(json, ",\"tensors\":[");
    for (int v = 0; v < plan->draft.graph->value_count; v++) {
        text_add(json, v ? "," : "");
        add_value(json, plan, v);
    }
    text_add(json, "],\"steps\":[");
    for (int s = 0; s < plan->draft.cover.count; s++)
        add_step(json, plan, s);
    text_add(json, "]}");
}

/* The part that frontends need to execute a plan, without the cost of the whole report. */
void plan_write_slots(const struct descriptor *descriptor, struct text *json) {
    const struct plan *plan = (const struct plan *)descriptor;
    text_add(json, "{");
    add_key(json, "engine", plan->draft.engine->name);
    add_device(json, &plan->draft.device);
    text_add(json, ",\"tensors\":[");
    for (int i = 0; i < plan->slot_count; i++) {
        text_add(json, i ? "," : "");
        add_value(json, plan, plan->slots[i].value);
    }
    text_add(json, "]}");
}

/* A plan that failed to finalize has no steps. */
void plan_write_kernels(const struct descriptor *plan, struct text *json) {
    const struct draft *draft = &((const struct plan *)plan)->draft;
    if (draft->steps && draft->engine->show)
        draft->engine->show(draft->steps, draft->cover.count, json);
    else
        text_add(json, "{\"kernels\":[],\"headers\":{}}");
}
