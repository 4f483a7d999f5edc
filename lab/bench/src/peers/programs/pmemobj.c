/* libpmemobj: a transaction that overwrites a record of a ring in a pool. Where the file is not persistent memory, it syncs the mapped pages. */
#include "loop.h"

#include <libpmemobj.h>
#include <unistd.h>

#define SLOTS (1 << 16)

struct ring {
    uint64_t count;
    char records[SLOTS][RECORD_BYTES];
};

static PMEMobjpool *pool;
static PMEMoid root;

static void is_done(int ok, const char *what) { sure(ok, what, pmemobj_errormsg()); }

static void open_engine(const char *dir, enum mode mode)
{
    char path[4096];
    (void)mode;
    snprintf(path, sizeof path, "%s/pool", dir);
    pool = access(path, F_OK) == 0 ? pmemobj_open(path, "peer") : pmemobj_create(path, "peer", 64 << 20, 0600);
    is_done(pool != NULL, "open the pool");
    root = pmemobj_root(pool, sizeof(struct ring));
    is_done(!OID_IS_NULL(root), "find the root");
}

static void put(uint64_t number, const char *record)
{
    struct ring *ring = pmemobj_direct(root);
    char *slot = ring->records[number % SLOTS];
    is_done(pmemobj_tx_begin(pool, NULL, TX_PARAM_NONE) == 0, "begin");
    is_done(pmemobj_tx_add_range(root, 0, sizeof ring->count) == 0, "add the count");
    is_done(pmemobj_tx_add_range(root, (uint64_t)(slot - (char *)ring), RECORD_BYTES) == 0, "add a record");
    memcpy(slot, record, RECORD_BYTES);
    ring->count = number + 1;
    pmemobj_tx_commit();
    is_done(pmemobj_tx_end() == 0, "commit");
}

static uint64_t count(void) { return ((struct ring *)pmemobj_direct(root))->count; }

static void close_engine(void) { pmemobj_close(pool); }
