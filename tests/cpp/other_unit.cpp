/* SPDX-License-Identifier: Apache-2.0 */
/* The second translation unit that includes weft.hpp: definitions of both units must link as one. */
#include <weft/weft.hpp>

std::string name_from_other_unit(const weft::Tensor &tensor) { return tensor->get_name(); }
weft::DataType_t type_from_other_unit() { return weft::Tensor_attributes().get_data_type(); }
