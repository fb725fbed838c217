/* pipeline_cursor: the slot of STAGES that a role fills or reads next, and the parity of its barriers */
struct pipeline_cursor {
    u32 slot = 0, phase = 0;
    DEVICE void advance() {
        if (++slot == STAGES) {
            slot = 0;
            phase ^= 1;
        }
    }
    DEVICE void skip(u32 steps) {
        slot += steps;
        phase ^= slot / STAGES & 1;
        slot %= STAGES;
    }
};
