/* RocksDB: a put, synced. */
#include "loop.h"

#include <rocksdb/c.h>

static rocksdb_t *db;
static rocksdb_writeoptions_t *writing;

static void open_engine(const char *dir, enum mode mode)
{
    char *error = NULL;
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(options, 1);
    db = rocksdb_open(options, dir, &error);
    sure(error == NULL, "open", error);
    writing = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(writing, mode != NOSYNC);
}

static void put(uint64_t number, const char *record)
{
    char *error = NULL;
    unsigned char key[8];
    key_of(number, key);
    rocksdb_put(db, writing, (const char *)key, sizeof key, record, RECORD_BYTES, &error);
    sure(error == NULL, "put", error);
}

static uint64_t count(void)
{
    uint64_t found = 0;
    rocksdb_iterator_t *each = rocksdb_create_iterator(db, rocksdb_readoptions_create());
    for (rocksdb_iter_seek_to_first(each); rocksdb_iter_valid(each); rocksdb_iter_next(each))
        found++;
    rocksdb_iter_destroy(each);
    return found;
}

static void close_engine(void) { rocksdb_close(db); }
