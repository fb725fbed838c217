/* varlen: TMA coordinates of a batch entry, for the attention kernels of sm_90
   Padded    coordinate 3 is the batch index
   Ragged    an entry starts at any offset and is followed by other entries: a tile must neither read nor write rows
             past its end. So these tensor maps cover rows by two coordinates. Coordinate 1 ranges over the extent
             of the rows, and the entry's last row in use is its last one: TMA reads zeros beyond it and drops writes.
             Coordinate 3, in units of 16 bytes, moves this end to the end of the entry in memory. The map's base is the
             extent of the rows before the tensor
   Limits    entries are 16-byte aligned. A box must not be entirely out of bounds: TMA would access memory relative to
             the map's base, which may not be mapped */

#pragma once

struct box_origin {
    i32 row, outer; /* coordinates 1 and 3 of the entry's first row */
};

/* Computes the box origin of a ragged entry. offset, row: the entry's offset and the row stride, in elements; UNIT:
   elements in 16 bytes; rows: extent of the rows. */
template <i32 UNIT> DEVICE box_origin ragged_entry(i64 offset, i64 row, i64 rows, i32 used) {
    return box_origin{(i32)rows - used, (i32)((offset + used * row) / UNIT)};
}
