# SPDX-License-Identifier: Apache-2.0
"""Operations that frontends spell otherwise than one row after the other. tools/gen.py leaves out of ops.py what is
written here."""

from __future__ import annotations

from weft.ops import Ops


class Sugar(Ops):
    """The hand-written operations of a graph."""
