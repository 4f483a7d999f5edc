/* Berkeley DB with its Replication Manager. A commit is written to the log, which no site syncs, and waits until the replica has received it.
 * Environment: PEER_ROLE is `master` or `replica`; PEER_OWN and PEER_OTHER are ports of the loopback interface. */
#include "loop.h"

#include <db.h>
#include <unistd.h>

#define HOST "127.0.0.1"
#define ACK_TIMEOUT_US 60000000

static DB_ENV *env;
static DB *db;
static int is_master;
static volatile int unacknowledged, has_all;

static void is_done(int code, const char *what) { sure(code == 0, what, db_strerror(code)); }

static void on_event(DB_ENV *of, u_int32_t event, void *info)
{
    (void)of, (void)info;
    if (event == DB_EVENT_REP_PERM_FAILED)
        unacknowledged = 1;
    if (event == DB_EVENT_REP_STARTUPDONE)
        has_all = 1;
}

static unsigned port(const char *name)
{
    const char *text = getenv(name);
    sure(text != NULL, "read a port", name);
    return (unsigned)atoi(text);
}

static void name_site(const char *port_name, u_int32_t role, u_int32_t more)
{
    DB_SITE *site;
    is_done(env->repmgr_site(env, HOST, port(port_name), &site, 0), "name a site");
    is_done(site->set_config(site, role, 1), "name a site");
    if (more != 0)
        is_done(site->set_config(site, more, 1), "name a site");
    is_done(site->close(site), "name a site");
}

static void open_database(u_int32_t flags)
{
    is_done(db_create(&db, env, 0), "make a database");
    is_done(db->open(db, NULL, "records.db", NULL, DB_BTREE, flags, 0600), "open the database");
}

static void open_engine(const char *dir, enum mode mode)
{
    const char *role = getenv("PEER_ROLE");
    (void)mode;
    is_master = role != NULL && strcmp(role, "master") == 0;
    is_done(db_env_create(&env, 0), "make an environment");
    is_done(env->set_cachesize(env, 0, 64 << 20, 1), "give it memory");
    is_done(env->set_flags(env, DB_TXN_WRITE_NOSYNC, 1), "let the log unsynced");
    is_done(env->set_event_notify(env, on_event), "hear of events");
    name_site("PEER_OWN", DB_LOCAL_SITE, is_master ? DB_GROUP_CREATOR : 0);
    if (!is_master)
        name_site("PEER_OTHER", DB_BOOTSTRAP_HELPER, 0);
    is_done(env->repmgr_set_ack_policy(env, DB_REPMGR_ACKS_ONE), "wait for a replica");
    is_done(env->rep_set_timeout(env, DB_REP_ACK_TIMEOUT, ACK_TIMEOUT_US), "wait for a replica");
    is_done(env->rep_set_config(env, DB_REPMGR_CONF_ELECTIONS, 0), "keep the master");
    /* A transaction's records in one message: two small ones wait 40 ms for the first to be acknowledged, because Nagle's algorithm is on. */
    is_done(env->rep_set_config(env, DB_REP_CONF_BULK, 1), "send records together");
    is_done(env->open(env, dir,
                      DB_CREATE | DB_INIT_TXN | DB_INIT_LOG | DB_INIT_LOCK | DB_INIT_MPOOL | DB_INIT_REP | DB_THREAD | DB_PRIVATE,
                      0600),
            "open the environment");
    is_done(env->repmgr_start(env, 3, is_master ? DB_REP_MASTER : DB_REP_CLIENT), "start replication");
    if (is_master)
        open_database(DB_CREATE | DB_AUTO_COMMIT);
    else
        while (!has_all)
            usleep(10000);
    /* The first open had no replica to wait for. */
    unacknowledged = 0;
}

static void put(uint64_t number, const char *record)
{
    unsigned char bytes[8];
    DBT key = {.data = bytes, .size = sizeof bytes}, value = {.data = (void *)record, .size = RECORD_BYTES};
    DB_TXN *open;
    key_of(number, bytes);
    is_done(env->txn_begin(env, NULL, &open, 0), "begin");
    is_done(db->put(db, open, &key, &value, 0), "put");
    is_done(open->commit(open, 0), "commit");
    sure(!unacknowledged, "commit", "the replica did not acknowledge it");
}

static uint64_t count(void)
{
    uint64_t found = 0;
    DBC *each;
    DBT key = {0}, value = {0};
    if (db == NULL)
        open_database(DB_RDONLY);
    is_done(db->cursor(db, NULL, &each, 0), "look through it");
    while (each->get(each, &key, &value, DB_NEXT) == 0)
        found++;
    is_done(each->close(each), "look through it");
    return found;
}

static void close_engine(void)
{
    if (db != NULL)
        is_done(db->close(db, 0), "close the database");
    is_done(env->close(env, 0), "close the environment");
}
