/* Berkeley DB in a dozen flat functions, for a program that is not linked to it.
 *
 * Compiled where `db.h` is, and loaded from there. One environment, private to its process, with a log and transactions and without
 * locks: whoever calls has one transaction open at a time. Every function returns Berkeley DB's code: 0 is success. */
#include <stdlib.h>
#include <string.h>
#include <db.h>

struct rex {
    DB_ENV *env;
    DB_TXN *open;
    unsigned count;
    DB *tables[16];
};

static DBT lent(const void *bytes, u_int32_t length)
{
    DBT dbt;
    memset(&dbt, 0, sizeof dbt);
    dbt.data = (void *)bytes;
    dbt.size = length;
    return dbt;
}

static DBT room(void *bytes, u_int32_t length)
{
    DBT dbt = lent(bytes, 0);
    dbt.ulen = length;
    dbt.flags = DB_DBT_USERMEM;
    return dbt;
}

int rex_close(struct rex *rex)
{
    int code = 0, next;
    unsigned at;
    if (rex->open != NULL)
        code = rex->open->abort(rex->open);
    for (at = 0; at < rex->count; at++) {
        next = rex->tables[at]->close(rex->tables[at], 0);
        code = code != 0 ? code : next;
    }
    if (rex->env != NULL) {
        next = rex->env->txn_checkpoint(rex->env, 0, 0, 0);
        code = code != 0 ? code : next;
        next = rex->env->close(rex->env, 0);
        code = code != 0 ? code : next;
    }
    free(rex);
    return code;
}

static int table(struct rex *rex, const char *name, u_int32_t page)
{
    DB *db;
    int code = db_create(&db, rex->env, 0);
    if (code != 0)
        return code;
    rex->tables[rex->count++] = db;
    if ((code = db->set_pagesize(db, page)) != 0)
        return code;
    return db->open(db, NULL, name, NULL, DB_BTREE, DB_CREATE | DB_AUTO_COMMIT, 0600);
}

/* `names` are separated by commas, each a btree in a file of its own. */
int rex_open(const char *directory, const char *names, u_int32_t page, u_int32_t cache, struct rex **out)
{
    static const u_int32_t flags =
        DB_CREATE | DB_INIT_TXN | DB_INIT_LOG | DB_INIT_MPOOL | DB_PRIVATE | DB_RECOVER;
    struct rex *rex = calloc(1, sizeof *rex);
    char name[32];
    size_t length;
    int code;
    *out = NULL;
    if (rex == NULL)
        return 12;
    if ((code = db_env_create(&rex->env, 0)) == 0)
        code = rex->env->set_cachesize(rex->env, 0, cache, 1);
    /* What a checkpoint has made needless goes. */
    if (code == 0)
        code = rex->env->log_set_config(rex->env, DB_LOG_AUTO_REMOVE, 1);
    if (code == 0)
        code = rex->env->open(rex->env, directory, flags, 0600);
    while (code == 0 && *names != 0) {
        length = strcspn(names, ",");
        if (length >= sizeof name || rex->count == sizeof rex->tables / sizeof *rex->tables) {
            code = 22;
            break;
        }
        memcpy(name, names, length);
        name[length] = 0;
        code = table(rex, name, page);
        names += length + (names[length] == ',');
    }
    if (code != 0) {
        rex_close(rex);
        return code;
    }
    *out = rex;
    return 0;
}

int rex_begin(struct rex *rex)
{
    return rex->env->txn_begin(rex->env, NULL, &rex->open, 0);
}

int rex_commit(struct rex *rex, int synced)
{
    DB_TXN *open = rex->open;
    rex->open = NULL;
    return open->commit(open, synced ? DB_TXN_SYNC : DB_TXN_NOSYNC);
}

int rex_abort(struct rex *rex)
{
    DB_TXN *open = rex->open;
    rex->open = NULL;
    return open->abort(open);
}

int rex_checkpoint(struct rex *rex)
{
    return rex->env->txn_checkpoint(rex->env, 0, 0, DB_FORCE);
}

static int get(struct rex *rex, unsigned at, const void *key, u_int32_t key_bytes, DBT *found)
{
    DBT wanted = lent(key, key_bytes);
    return rex->tables[at]->get(rex->tables[at], rex->open, &wanted, found, 0);
}

/* A record; `length` is its bytes, also when there is too little room for them. */
int rex_get(struct rex *rex, unsigned at, const void *key, u_int32_t key_bytes, void *into, u_int32_t bytes, u_int32_t *length)
{
    DBT found = room(into, bytes);
    int code = get(rex, at, key, key_bytes, &found);
    *length = found.size;
    return code;
}

/* One byte of a record; `length` is 0 when the record ends before it. */
int rex_byte(struct rex *rex, unsigned at, const void *key, u_int32_t key_bytes, u_int32_t from, void *into, u_int32_t *length)
{
    DBT found = room(into, 1);
    int code;
    found.flags |= DB_DBT_PARTIAL;
    found.doff = from;
    found.dlen = 1;
    code = get(rex, at, key, key_bytes, &found);
    *length = found.size;
    return code;
}

int rex_put(struct rex *rex, unsigned at, const void *key, u_int32_t key_bytes, const void *bytes, u_int32_t length)
{
    DBT place = lent(key, key_bytes), record = lent(bytes, length);
    return rex->tables[at]->put(rex->tables[at], rex->open, &place, &record, 0);
}

/* Replaces as many bytes of a record, from `from` on. */
int rex_set(struct rex *rex, unsigned at, const void *key, u_int32_t key_bytes, u_int32_t from, const void *bytes, u_int32_t length)
{
    DBT place = lent(key, key_bytes), record = lent(bytes, length);
    record.flags = DB_DBT_PARTIAL;
    record.doff = from;
    record.dlen = length;
    return rex->tables[at]->put(rex->tables[at], rex->open, &place, &record, 0);
}

int rex_delete(struct rex *rex, unsigned at, const void *key, u_int32_t key_bytes)
{
    DBT place = lent(key, key_bytes);
    return rex->tables[at]->del(rex->tables[at], rex->open, &place, 0);
}

/* Keys of `key_bytes` bytes each, from `first` to `last`, as many as there is room for; `count` is how many. */
int rex_keys(struct rex *rex, unsigned at, const void *first, const void *last, u_int32_t key_bytes, unsigned char *into,
             u_int32_t keys, u_int32_t *count)
{
    DBC *cursor;
    DBT key = room(into, key_bytes), nothing = room(NULL, 0);
    u_int32_t step = DB_SET_RANGE;
    int code, ended;
    *count = 0;
    nothing.flags |= DB_DBT_PARTIAL;
    if ((code = rex->tables[at]->cursor(rex->tables[at], rex->open, &cursor, 0)) != 0)
        return code;
    while (*count < keys) {
        key.data = into;
        key.size = 0;
        if (step == DB_SET_RANGE) {
            memcpy(into, first, key_bytes);
            key.size = key_bytes;
        }
        if ((code = cursor->get(cursor, &key, &nothing, step)) != 0 || memcmp(into, last, key_bytes) > 0)
            break;
        step = DB_NEXT;
        into += key_bytes;
        ++*count;
    }
    ended = cursor->close(cursor);
    return code != 0 && code != DB_NOTFOUND ? code : ended;
}

const char *rex_message(int code)
{
    return db_strerror(code);
}

/* What says that there is no such record, and that there is too little room. */
void rex_codes(int codes[2])
{
    codes[0] = DB_NOTFOUND;
    codes[1] = DB_BUFFER_SMALL;
}
