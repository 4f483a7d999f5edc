/* Berkeley DB: a transaction that puts, its commit synced; or only written, as the application asks with DB_TXN_WRITE_NOSYNC. */
#include "loop.h"

#include <db.h>

static DB_ENV *env;
static DB *db;
static u_int32_t how;

static void is_done(int code, const char *what) { sure(code == 0, what, db_strerror(code)); }

static void open_engine(const char *dir, enum mode mode)
{
    how = mode == NOSYNC ? DB_TXN_WRITE_NOSYNC : DB_TXN_SYNC;
    is_done(db_env_create(&env, 0), "make an environment");
    is_done(env->set_cachesize(env, 0, 64 << 20, 1), "give it memory");
    if (mode == DSYNC)
        is_done(env->log_set_config(env, DB_LOG_DSYNC, 1), "have its log opened O_DSYNC");
    is_done(env->open(env, dir,
                      DB_CREATE | DB_INIT_TXN | DB_INIT_LOG | DB_INIT_LOCK | DB_INIT_MPOOL | DB_RECOVER | DB_PRIVATE, 0600),
            "open the environment");
    is_done(db_create(&db, env, 0), "make a database");
    is_done(db->open(db, NULL, "records.db", NULL, DB_BTREE, DB_CREATE | DB_AUTO_COMMIT, 0600), "open the database");
}

static void put(uint64_t number, const char *record)
{
    unsigned char bytes[8];
    DBT key = {.data = bytes, .size = sizeof bytes}, value = {.data = (void *)record, .size = RECORD_BYTES};
    DB_TXN *open;
    key_of(number, bytes);
    is_done(env->txn_begin(env, NULL, &open, 0), "begin");
    is_done(db->put(db, open, &key, &value, 0), "put");
    is_done(open->commit(open, how), "commit");
}

static uint64_t count(void)
{
    uint64_t found = 0;
    DBC *each;
    DBT key = {0}, value = {0};
    is_done(db->cursor(db, NULL, &each, 0), "look through it");
    while (each->get(each, &key, &value, DB_NEXT) == 0)
        found++;
    is_done(each->close(each), "look through it");
    return found;
}

static void close_engine(void)
{
    is_done(db->close(db, 0), "close the database");
    is_done(env->close(env, 0), "close the environment");
}
