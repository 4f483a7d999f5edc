/* Persistent heaps in shared regions. Lock N covers the Nth span of $SPAN bytes. */
#include "node.h"

/* The list element of all cases. */
typedef struct entry {
    rvm_length_t next; /* offset in the region; 0: none */
    long value;
} entry_t;

static place_t join_heaps(const char *directory)
{
    rvm_join_t options = options_of(directory);
    rvm_node_info_t info;
    place_t place;

    OK(rvm_node_join(&options, &place.node));
    OK(rvm_node_info(place.node, &info));
    place.base = info.vmaddr;
    place.id = info.id;
    return place;
}

static rvm_txn_t begin_under(place_t *place, unsigned lock, rvm_hold_t hold)
{
    rvm_txn_t txn = begin(place);

    OK(rvm_txn_acquire(txn, lock, hold));
    return txn;
}

/* Formats the heap under a lock. */
static void format(place_t *place, unsigned lock)
{
    rvm_txn_t txn = begin_under(place, lock, rvm_exclusive);
    void *block;

    OK(rvm_txn_format_heap(txn, lock));
    EXPECT(rvm_txn_malloc(txn, lock, 8, &block), RVM_EUNCOMMIT);
    OK(rvm_txn_commit(txn, NULL));
}

/* Adds a value to the front of the list in root 0. */
static entry_t *push(place_t *place, rvm_txn_t txn, unsigned lock, long value)
{
    void *first, *block;
    entry_t *entry;

    OK(rvm_txn_root(txn, lock, 0, &first));
    OK(rvm_txn_malloc(txn, lock, sizeof *entry, &block));
    entry = (entry_t *)block;
    OK(rvm_txn_set_range(txn, entry, sizeof *entry));
    entry->next = first == NULL ? 0 : (rvm_length_t)((char *)first - place->base);
    entry->value = value;
    OK(rvm_txn_set_root(txn, lock, 0, entry));
    return entry;
}

static rvm_length_t taken(place_t *place, unsigned lock)
{
    rvm_txn_t txn = begin_under(place, lock, rvm_exclusive);
    rvm_heap_info_t info;

    OK(rvm_txn_heap_info(txn, lock, &info));
    OK(rvm_txn_commit(txn, NULL));
    CHECK(info.taken <= info.usable && info.usable < info.bytes);
    return info.taken;
}

/* A block allocated by one node is found and freed by another; an abort undoes it. */
static void blocks(void)
{
    place_t one = join_heaps("one"), two = join_heaps("two");
    void *first, *second, *moved;
    rvm_length_t size, before;
    entry_t *entry;
    rvm_txn_t txn;

    format(&one, 1);
    before = taken(&one, 1);
    txn = begin_under(&one, 1, rvm_exclusive);
    OK(rvm_txn_root(txn, 1, 0, &first));
    CHECK(first == NULL);
    push(&one, txn, 1, 7);
    OK(rvm_txn_commit(txn, NULL));
    txn = begin_under(&one, 1, rvm_exclusive);
    push(&one, txn, 1, 8);
    OK(rvm_txn_abort(txn));
    CHECK(taken(&one, 1) > before);

    txn = begin_under(&two, 1, rvm_shared);
    OK(rvm_txn_root(txn, 1, 0, &first));
    entry = (entry_t *)first;
    CHECK((char *)entry > two.base && entry->value == 7 && entry->next == 0);
    OK(rvm_txn_block_size(txn, entry, &size));
    CHECK(size >= sizeof *entry && (unsigned long)entry % 16 == 0);
    OK(rvm_txn_commit(txn, NULL));

    txn = begin_under(&two, 1, rvm_exclusive);
    OK(rvm_txn_realloc(txn, entry, 3 * PAGE, &moved));
    CHECK(((entry_t *)moved)->value == 7);
    OK(rvm_txn_block_size(txn, moved, &size));
    CHECK(size >= 3 * PAGE);
    EXPECT(rvm_txn_free(txn, entry), RVM_EBLOCK);
    OK(rvm_txn_malloc(txn, 1, 100, &second));
    OK(rvm_txn_free(txn, second));
    OK(rvm_txn_set_root(txn, 1, 0, moved));
    OK(rvm_txn_commit(txn, NULL));

    txn = begin_under(&one, 1, rvm_exclusive);
    OK(rvm_txn_root(txn, 1, 0, &first));
    CHECK(first == one.base + ((char *)moved - two.base) && ((entry_t *)first)->value == 7);
    OK(rvm_txn_set_root(txn, 1, 0, NULL));
    OK(rvm_txn_free(txn, first));
    EXPECT(rvm_txn_free(txn, first), RVM_EBLOCK);
    OK(rvm_txn_commit(txn, NULL));
    CHECK(taken(&two, 1) == before);
    OK(rvm_node_leave(one.node));
    OK(rvm_node_leave(two.node));
}

/* Each error has its code, and changes nothing. */
static void refused(void)
{
    place_t one = join_heaps("one");
    rvm_heap_info_t info;
    rvm_length_t size;
    void *block = &one;
    rvm_txn_t txn;
    char elsewhere;

    format(&one, 1);
    txn = begin(&one);
    EXPECT(rvm_txn_malloc(txn, 1, 8, &block), RVM_ENOT_HELD);
    CHECK(rvm_error_lock() == 1);
    EXPECT(rvm_txn_root(txn, 4000, 0, &block), RVM_ELOCK);
    OK(rvm_txn_acquire(txn, 1, rvm_shared));
    EXPECT(rvm_txn_malloc(txn, 1, 8, &block), RVM_ENOT_HELD);
    EXPECT(rvm_txn_heap_info(txn, 1, &info), RVM_ENOT_HELD);
    EXPECT(rvm_txn_format_heap(txn, 1), RVM_ENOT_HELD);
    EXPECT(rvm_txn_set_root(txn, 1, 0, NULL), RVM_ENOT_HELD);
    OK(rvm_txn_acquire(txn, 2, rvm_exclusive));
    EXPECT(rvm_txn_malloc(txn, 2, 8, &block), RVM_ENO_HEAP);
    OK(rvm_txn_acquire(txn, 1, rvm_exclusive));
    EXPECT(rvm_txn_malloc(txn, 1, 1ul << 40, &block), RVM_ENO_ROOM);
    EXPECT(rvm_txn_malloc(txn, 1, 8, NULL), RVM_ERANGE);
    CHECK(block == &one);
    EXPECT(rvm_txn_root(txn, 1, 64, &block), RVM_ERANGE);
    EXPECT(rvm_txn_set_root(txn, 1, 0, &elsewhere), RVM_EBLOCK);
    EXPECT(rvm_txn_free(txn, NULL), RVM_EBLOCK);
    EXPECT(rvm_txn_free(txn, &elsewhere), RVM_EBLOCK);
    EXPECT(rvm_txn_free(txn, one.base - 1), RVM_EBLOCK);
    OK(rvm_txn_malloc(txn, 1, 8, &block));
    EXPECT(rvm_txn_free(txn, (char *)block + 16), RVM_EBLOCK);
    EXPECT(rvm_txn_block_size(txn, block, NULL), RVM_ERANGE);
    OK(rvm_txn_block_size(txn, block, &size));
    /* The block belongs to an open transaction, which may be undone: no heap can be made over it. */
    EXPECT(rvm_txn_format_heap(txn, 1), RVM_EUNCOMMIT);
    OK(rvm_txn_commit(txn, NULL));
    EXPECT(rvm_txn_free(txn, block), RVM_EHANDLE);
    OK(rvm_node_leave(one.node));
}

/* The checksum of a heap's header (docs/design/heap.md). */
static unsigned crc32c(const char *bytes, unsigned long count)
{
    unsigned crc = ~0u;
    int bit;

    while (count-- > 0) {
        crc ^= (unsigned char)*bytes++;
        for (bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

/* A heap of another version does not count as none: a program would make one over it. */
static void newer(void)
{
    place_t one = join_heaps("one"), two;
    unsigned checksum;
    rvm_span_t span;
    rvm_txn_t txn;
    char *header;
    void *block;

    format(&one, 1);
    txn = begin_under(&one, 1, rvm_exclusive);
    OK(rvm_node_span(one.node, 1, &span));
    header = span.vmaddr;
    OK(rvm_txn_set_range(txn, header, 36));
    header[8] = 2;
    checksum = crc32c(header, 32);
    memcpy(header + 32, &checksum, sizeof checksum);
    OK(rvm_txn_commit(txn, NULL));
    OK(rvm_node_leave(one.node));

    two = join_heaps("two");
    txn = begin_under(&two, 1, rvm_exclusive);
    EXPECT(rvm_txn_malloc(txn, 1, 8, &block), RVM_EVERSION_SKEW);
    EXPECT(rvm_txn_root(txn, 1, 0, &block), RVM_EVERSION_SKEW);
    OK(rvm_txn_commit(txn, NULL));
    OK(rvm_node_leave(two.node));
}

/* A pinned reader follows a list without its lock, in the pinned state. */
static void pinned(void)
{
    place_t one = join_heaps("one"), two = join_heaps("two");
    rvm_reader_t reader;
    rvm_age_t age;
    entry_t seen;
    rvm_txn_t txn;
    void *first;

    format(&one, 1);
    txn = begin_under(&one, 1, rvm_exclusive);
    push(&one, txn, 1, 1);
    OK(rvm_txn_commit(txn, NULL));

    OK(rvm_reader_begin(two.node, &reader));
    EXPECT(rvm_reader_root(reader, 1, 0, &first), RVM_ENO_HEAP);
    EXPECT(rvm_reader_root(reader, 4000, 0, &first), RVM_ELOCK);
    txn = begin_under(&two, 1, rvm_shared);
    OK(rvm_txn_root(txn, 1, 0, &first));
    OK(rvm_txn_commit(txn, NULL));
    OK(rvm_reader_accept(reader));
    OK(rvm_reader_age(reader, &age));

    txn = begin_under(&one, 1, rvm_exclusive);
    push(&one, txn, 1, 2);
    OK(rvm_txn_commit(txn, NULL));
    for (age.positions = 0; age.positions == 0; usleep(1000))
        OK(rvm_reader_age(reader, &age));
    OK(rvm_reader_root(reader, 1, 0, &first));
    OK(rvm_reader_read(reader, first, &seen, sizeof seen));
    CHECK(seen.value == 1 && seen.next == 0);
    OK(rvm_reader_accept(reader));
    OK(rvm_reader_root(reader, 1, 0, &first));
    OK(rvm_reader_read(reader, first, &seen, sizeof seen));
    CHECK(seen.value == 2);
    OK(rvm_reader_read(reader, two.base + seen.next, &seen, sizeof seen));
    CHECK(seen.value == 1 && seen.next == 0);
    OK(rvm_reader_root(reader, 1, 1, &first));
    CHECK(first == NULL);
    EXPECT(rvm_reader_root(reader, 1, 64, &first), RVM_ERANGE);
    OK(rvm_reader_end(reader));
    OK(rvm_node_leave(one.node));
    OK(rvm_node_leave(two.node));
}

/* A heap on a node that finds stores: stores to a block need not be declared. */
static void found_by_page(void)
{
    rvm_join_t options = options_of("one");
    place_t two = join_heaps("two"), one;
    rvm_node_info_t info;
    rvm_txn_t txn;
    void *first;

    options.capture = rvm_capture_twins;
    OK(rvm_node_join(&options, &one.node));
    OK(rvm_node_info(one.node, &info));
    one.base = info.vmaddr;
    format(&one, 1);
    txn = begin_under(&one, 1, rvm_exclusive);
    OK(rvm_txn_malloc(txn, 1, sizeof(entry_t), &first));
    /* Not declared, but found. */
    ((entry_t *)first)->next = 0;
    ((entry_t *)first)->value = 11;
    OK(rvm_txn_set_root(txn, 1, 0, first));
    OK(rvm_txn_commit(txn, NULL));
    txn = begin_under(&two, 1, rvm_exclusive);
    OK(rvm_txn_root(txn, 1, 0, &first));
    CHECK(first != NULL && ((entry_t *)first)->value == 11);
    push(&two, txn, 1, 12);
    OK(rvm_txn_commit(txn, NULL));
    txn = begin_under(&one, 1, rvm_exclusive);
    OK(rvm_txn_root(txn, 1, 0, &first));
    CHECK(((entry_t *)first)->value == 12);
    OK(rvm_txn_free(txn, first));
    OK(rvm_txn_commit(txn, NULL));
    OK(rvm_node_leave(one.node));
    OK(rvm_node_leave(two.node));
}

MAIN(CASE(blocks), CASE(refused), CASE(newer), CASE(pinned), CASE(found_by_page))
