/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor kinds of this layer. */
#include "plan/schemas.h"
#include "plan/plan.h"

const struct schema *const plan_schemas[] = {
    &engine_schema,        &knob_info_schema,    &knob_setting_schema,      &layout_info_schema,
    &engine_config_schema, &heuristics_schema,   &intermediate_info_schema, &plan_schema,
    &variant_pack_schema,  &kernel_cache_schema, &device_properties_schema, NULL,
};
