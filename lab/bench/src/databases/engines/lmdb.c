/* LMDB: a transaction that puts, its commit synced. */
#include "loop.h"

#include <lmdb.h>

static MDB_env *env;
static MDB_dbi db;

static void is_done(int code, const char *what) { sure(code == 0, what, mdb_strerror(code)); }

static void open_engine(const char *dir, enum mode mode)
{
    MDB_txn *open;
    is_done(mdb_env_create(&env), "make an environment");
    is_done(mdb_env_set_mapsize(env, (size_t)1 << 30), "give it room");
    is_done(mdb_env_open(env, dir, mode == NOSYNC ? MDB_NOSYNC : 0, 0600), "open the environment");
    is_done(mdb_txn_begin(env, NULL, 0, &open), "begin");
    is_done(mdb_dbi_open(open, NULL, 0, &db), "open the database");
    is_done(mdb_txn_commit(open), "commit");
}

static void put(uint64_t number, const char *record)
{
    unsigned char bytes[8];
    MDB_val key = {sizeof bytes, bytes}, value = {RECORD_BYTES, (void *)record};
    MDB_txn *open;
    key_of(number, bytes);
    is_done(mdb_txn_begin(env, NULL, 0, &open), "begin");
    is_done(mdb_put(open, db, &key, &value, 0), "put");
    is_done(mdb_txn_commit(open), "commit");
}

static uint64_t count(void)
{
    MDB_txn *open;
    MDB_stat there;
    is_done(mdb_txn_begin(env, NULL, MDB_RDONLY, &open), "begin");
    is_done(mdb_stat(open, db, &there), "look");
    mdb_txn_abort(open);
    return there.ms_entries;
}

static void close_engine(void) { mdb_env_close(env); }
