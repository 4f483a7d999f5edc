/* `berkeley write DIR FROM`: one number a transaction from FROM + 1 on, each said when it is committed; the same transaction removes the one that is KEPT older.
   `berkeley check DIR`: recovers, says the first number and the last, after all between them were found, and verifies the file. */
#include <db.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEPT 1000

static void sure(int rc, const char *what) {
    if (rc) {
        fprintf(stderr, "%s: %s\n", what, db_strerror(rc));
        exit(1);
    }
}

/* Berkeley DB 5.3 says of a commit that it went well when it could not begin its next log file: it has lost the environment then, and tells so only here. */
static volatile int panicked;

static void on_event(DB_ENV *env, u_int32_t event, void *info) {
    (void)env, (void)info;
    if (event == DB_EVENT_PANIC) panicked = 1;
}

/* Berkeley DB 5.3 now and then says of a commit that it went well after a call of it has failed. So nothing is said to be committed once one has, because the
   files' server is gone. */
static void heed(int failed) {
    if (failed && (errno == ECONNABORTED || errno == ENOTCONN || errno == EIO)) {
        perror("the files are gone");
        _exit(3);
    }
}

static int sync_file(int fd) {
    int rc = fdatasync(fd);
    heed(rc);
    return rc;
}

static ssize_t write_file(int fd, const void *from, size_t length) {
    ssize_t done = write(fd, from, length);
    heed(done < 0);
    return done;
}

static ssize_t write_file_at(int fd, const void *from, size_t length, off_t at) {
    ssize_t done = pwrite(fd, from, length, at);
    heed(done < 0);
    return done;
}

static ssize_t read_file_at(int fd, void *into, size_t length, off_t at) {
    ssize_t done = pread(fd, into, length, at);
    heed(done < 0);
    return done;
}

static int remove_file(const char *path) {
    int rc = unlink(path);
    heed(rc);
    return rc;
}

static void look_at_every_call(void) {
    db_env_set_func_fsync(sync_file);
    db_env_set_func_write(write_file);
    db_env_set_func_pwrite(write_file_at);
    db_env_set_func_pread(read_file_at);
    db_env_set_func_unlink(remove_file);
}

static void put_number(unsigned char *bytes, unsigned number) {
    for (int i = 0; i < 4; i++) bytes[i] = (unsigned char)(number >> (24 - 8 * i));
}

int main(int argc, char **argv) {
    DB_ENV *env;
    DB *db;
    DB_TXN *txn;
    DBT key, old, value;
    char filler[2000];
    memset(filler, 'x', sizeof filler);
    if (argc < 3) return 2;
    look_at_every_call();
    sure(db_env_create(&env, 0), "create");
    sure(env->set_event_notify(env, on_event), "set_event_notify");
    /* Small, so that logs are finished, and removed once a checkpoint is behind them. */
    sure(env->set_lg_max(env, 1 << 20), "set_lg_max");
    sure(env->log_set_config(env, DB_LOG_AUTO_REMOVE, 1), "log_set_config");
    sure(env->open(env, argv[2], DB_CREATE | DB_INIT_TXN | DB_INIT_LOG | DB_INIT_MPOOL | DB_INIT_LOCK | DB_RECOVER | DB_PRIVATE, 0600), "open");
    sure(db_create(&db, env, 0), "db");
    sure(db->open(db, NULL, "numbers.db", NULL, DB_BTREE, DB_CREATE | DB_AUTO_COMMIT, 0600), "open numbers.db");
    memset(&key, 0, sizeof key);
    memset(&old, 0, sizeof old);
    memset(&value, 0, sizeof value);
    if (argc > 3) {
        for (unsigned number = (unsigned)atoi(argv[3]) + 1;; number++) {
            unsigned char bytes[4], old_bytes[4];
            put_number(bytes, number);
            put_number(old_bytes, number - KEPT);
            key.data = bytes, key.size = 4;
            old.data = old_bytes, old.size = 4;
            value.data = filler, value.size = number % sizeof filler;
            sure(env->txn_begin(env, NULL, &txn, 0), "begin");
            sure(db->put(db, txn, &key, &value, 0), "put");
            if (number > KEPT) sure(db->del(db, txn, &old, 0), "del");
            sure(txn->commit(txn, 0), "commit");
            if (panicked) sure(DB_RUNRECOVERY, "commit");
            printf("%u\n", number);
            fflush(stdout);
            if (number % 500 == 0) sure(env->txn_checkpoint(env, 0, 0, 0), "checkpoint");
        }
    }
    unsigned first = 0, last = 0;
    DBC *cursor;
    sure(db->cursor(db, NULL, &cursor, 0), "cursor");
    while (cursor->get(cursor, &key, &value, DB_NEXT) == 0) {
        const unsigned char *b = key.data;
        unsigned number = (unsigned)b[0] << 24 | (unsigned)b[1] << 16 | (unsigned)b[2] << 8 | b[3];
        if (last && number != last + 1) {
            fprintf(stderr, "after %u comes %u\n", last, number);
            return 1;
        }
        if (!first) first = number;
        last = number;
        if (value.size != last % sizeof filler || memcmp(value.data, filler, value.size)) {
            fprintf(stderr, "number %u has not what was put\n", last);
            return 1;
        }
    }
    sure(cursor->close(cursor), "close");
    sure(db->close(db, 0), "close");
    sure(db_create(&db, env, 0), "db");
    sure(db->verify(db, "numbers.db", NULL, NULL, 0), "verify");
    sure(env->close(env, 0), "close");
    printf("%u %u\n", first, last);
    return 0;
}
