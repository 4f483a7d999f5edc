/* `lmdb write DIR FROM`: one number a transaction from FROM + 1 on, each said when it is committed; the same transaction removes the one that is KEPT older.
   `lmdb check DIR`: the first number and the last, after all between them were found. */
#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEPT 1000

static void sure(int rc, const char *what) {
    if (rc) {
        fprintf(stderr, "%s: %s\n", what, mdb_strerror(rc));
        exit(1);
    }
}

static unsigned number_of(const MDB_val *key) {
    const unsigned char *b = key->mv_data;
    return (unsigned)b[0] << 24 | (unsigned)b[1] << 16 | (unsigned)b[2] << 8 | b[3];
}

static void put_number(unsigned char *bytes, unsigned number) {
    for (int i = 0; i < 4; i++) bytes[i] = (unsigned char)(number >> (24 - 8 * i));
}

int main(int argc, char **argv) {
    MDB_env *env;
    MDB_dbi dbi;
    MDB_txn *txn;
    char filler[2000];
    memset(filler, 'x', sizeof filler);
    if (argc < 3) return 2;
    sure(mdb_env_create(&env), "create");
    sure(mdb_env_set_mapsize(env, 64 << 20), "mapsize");
    sure(mdb_env_open(env, argv[2], 0, 0600), "open");
    if (argc > 3) {
        for (unsigned number = (unsigned)atoi(argv[3]) + 1;; number++) {
            unsigned char bytes[4], old_bytes[4];
            MDB_val key = {4, bytes}, old = {4, old_bytes}, value = {number % sizeof filler, filler};
            put_number(bytes, number);
            put_number(old_bytes, number - KEPT);
            sure(mdb_txn_begin(env, NULL, 0, &txn), "begin");
            sure(mdb_dbi_open(txn, NULL, 0, &dbi), "dbi");
            sure(mdb_put(txn, dbi, &key, &value, 0), "put");
            if (number > KEPT) sure(mdb_del(txn, dbi, &old, NULL), "del");
            sure(mdb_txn_commit(txn), "commit");
            printf("%u\n", number);
            fflush(stdout);
        }
    }
    unsigned first = 0, last = 0;
    MDB_cursor *cursor;
    MDB_val key, value;
    sure(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), "begin");
    sure(mdb_dbi_open(txn, NULL, 0, &dbi), "dbi");
    sure(mdb_cursor_open(txn, dbi, &cursor), "cursor");
    while (mdb_cursor_get(cursor, &key, &value, MDB_NEXT) == 0) {
        unsigned number = number_of(&key);
        if (last && number != last + 1) {
            fprintf(stderr, "after %u comes %u\n", last, number);
            return 1;
        }
        if (!first) first = number;
        last = number;
        if (value.mv_size != last % sizeof filler || memcmp(value.mv_data, filler, value.mv_size)) {
            fprintf(stderr, "number %u has not what was put\n", last);
            return 1;
        }
    }
    printf("%u %u\n", first, last);
    return 0;
}
