/* `rocks write DIR FROM`: one number a synced write from FROM + 1 on, each said when that is done; the same write removes the one that is KEPT older.
   `rocks check DIR`: the first number and the last, after all between them were found. */
#include <rocksdb/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEPT 1000

static void sure(char *error, const char *what) {
    if (error) {
        fprintf(stderr, "%s: %s\n", what, error);
        exit(1);
    }
}

static void put_number(char *bytes, unsigned number) {
    for (int i = 0; i < 4; i++) bytes[i] = (char)(number >> (24 - 8 * i));
}

int main(int argc, char **argv) {
    char *error = NULL, filler[2000];
    memset(filler, 'x', sizeof filler);
    if (argc < 3) return 2;
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(options, 1);
    /* Small, so that logs are finished and others begun. */
    rocksdb_options_set_write_buffer_size(options, 512 << 10);
    rocksdb_options_set_keep_log_file_num(options, 3);
    rocksdb_options_set_paranoid_checks(options, 1);
    rocksdb_options_set_wal_recovery_mode(options, rocksdb_point_in_time_recovery);
    rocksdb_t *db = rocksdb_open(options, argv[2], &error);
    sure(error, "open");
    if (argc > 3) {
        rocksdb_writeoptions_t *synced = rocksdb_writeoptions_create();
        rocksdb_writeoptions_set_sync(synced, 1);
        for (unsigned number = (unsigned)atoi(argv[3]) + 1;; number++) {
            char bytes[4];
            rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
            put_number(bytes, number);
            rocksdb_writebatch_put(batch, bytes, 4, filler, number % sizeof filler);
            put_number(bytes, number - KEPT);
            if (number > KEPT) rocksdb_writebatch_delete(batch, bytes, 4);
            rocksdb_write(db, synced, batch, &error);
            sure(error, "write");
            rocksdb_writebatch_destroy(batch);
            printf("%u\n", number);
            fflush(stdout);
        }
    }
    unsigned first = 0, last = 0;
    rocksdb_readoptions_t *reading = rocksdb_readoptions_create();
    rocksdb_iterator_t *each = rocksdb_create_iterator(db, reading);
    for (rocksdb_iter_seek_to_first(each); rocksdb_iter_valid(each); rocksdb_iter_next(each)) {
        size_t length;
        const unsigned char *b = (const unsigned char *)rocksdb_iter_key(each, &length);
        unsigned number = (unsigned)b[0] << 24 | (unsigned)b[1] << 16 | (unsigned)b[2] << 8 | b[3];
        if (last && number != last + 1) {
            fprintf(stderr, "after %u comes %u\n", last, number);
            return 1;
        }
        if (!first) first = number;
        last = number;
        const char *value = rocksdb_iter_value(each, &length);
        if (length != last % sizeof filler || memcmp(value, filler, length)) {
            fprintf(stderr, "number %u has not what was put\n", last);
            return 1;
        }
    }
    rocksdb_iter_get_error(each, &error);
    sure(error, "read");
    rocksdb_iter_destroy(each);
    rocksdb_close(db);
    printf("%u %u\n", first, last);
    return 0;
}
