/* entries: where a batch entry is in its tensor's map, for the attention kernels of sm_90
   Padded    coordinate 3 is its number
   Ragged    it begins wherever an offset says, and ends in the midst of others: a tile must neither read nor write rows
             behind its end. So these maps count rows twice. Coordinate 1 runs to the extent of the rows, where the
             entry's last row in use is: beyond it reads give zeros, and writes are dropped. Coordinate 3, in units of
             16 bytes, moves that end to where it is in memory. The map begins so many rows before the tensor
   Limits    entries are 16-byte aligned. A box that lies outside in whole must not be asked for: it would be looked for
             where the map begins, in memory that may not exist */

#pragma once

struct box_entry {
    i32 row, place; /* coordinate 1 of its first row, and coordinate 3 */
};

/* offset, and from row to row: elements, of which 16 bytes have UNIT; rows: the extent. */
template <i32 UNIT> DEVICE box_entry ragged_entry(i64 offset, i64 row, i64 rows, i32 used) {
    return box_entry{(i32)rows - used, (i32)((offset + used * row) / UNIT)};
}
