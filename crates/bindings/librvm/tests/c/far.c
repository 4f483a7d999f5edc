/*
 * Far memory: allocating, errors, fetching and losing pages. Lenders are in $LENDERS, at most two, separated by a
 * space.
 */
#include <pthread.h>
#include <signal.h>
#include <stddef.h>

#include "check.h"

#include <rvm/far.h>

#define PAGE 4096ul
#define THREADS 4
/* Exit status of a test that cannot run on this machine. */
#define NOT_HERE 77

static char names[1024];
static const char *lenders[2];

static rvm_far_options_t options_of(unsigned long bytes, unsigned long local)
{
    rvm_far_options_t options;
    char *next;

    rvm_init_far_options(&options);
    options.bytes = bytes;
    options.local_bytes = local;
    options.insecure = rvm_true;
    options.lenders = lenders;
    CHECK(getenv("LENDERS") != NULL && strlen(getenv("LENDERS")) < sizeof names);
    strcpy(names, getenv("LENDERS"));
    for (next = strtok(names, " "); next != NULL; next = strtok(NULL, " "))
        lenders[options.n_lenders++] = next;
    return options;
}

/* Opens far memory if this machine supports it. */
static rvm_far_t opened(const rvm_far_options_t *options)
{
    rvm_far_t far = NULL;
    rvm_return_t code = rvm_far_open(options, &far);

    if (code == RVM_EIO && (errno == EPERM || errno == EACCES || errno == ENOSYS)) {
        puts(rvm_error_text());
        exit(NOT_HERE);
    }
    EXPECT(code, RVM_SUCCESS);
    return far;
}

static rvm_far_status_t status_of(rvm_far_t far)
{
    rvm_far_status_t status;

    OK(rvm_far_status(far, &status));
    return status;
}

/* A number that does not compress and differs in every page. */
static unsigned long number(unsigned long at)
{
    unsigned long mixed = (at + 1) * 0x9e3779b97f4a7c15ul;

    mixed ^= mixed >> 29;
    return mixed * 0xbf58476d1ce4e5b9ul;
}

static void fill(unsigned long *memory, unsigned long count)
{
    unsigned long at;

    for (at = 0; at < count; at++)
        memory[at] = number(at);
}

static void check_filled(const unsigned long *memory, unsigned long count)
{
    unsigned long at;

    for (at = 0; at < count; at++)
        CHECK(memory[at] == number(at));
}

/* The library checks the same numbers of its records. */
static void layout(void)
{
    rvm_far_options_t options;

    CHECK(sizeof(rvm_far_options_t) == 144);
    CHECK(offsetof(rvm_far_options_t, lenders) == 24);
    CHECK(offsetof(rvm_far_options_t, insecure) == 48);
    CHECK(offsetof(rvm_far_options_t, spill) == 56);
    CHECK(offsetof(rvm_far_options_t, replacement) == 96);
    CHECK(offsetof(rvm_far_options_t, user_faults_only) == 104);
    CHECK(offsetof(rvm_far_options_t, words) == 120);
    CHECK(offsetof(rvm_far_options_t, reserved) == 136);
    CHECK(sizeof(rvm_far_status_t) == 128);
    CHECK(offsetof(rvm_far_status_t, sent) == 80);
    CHECK(offsetof(rvm_far_status_t, written) == 104);
    memset(&options, 0xff, sizeof options);
    rvm_init_far_options(&options);
    CHECK(options.copies == 2 && options.threads == 4 && options.packed_bytes == ~0ul);
    CHECK(options.lenders == NULL && options.n_lenders == 0 && options.spill == NULL);
    CHECK(options.words == RVM_FAR_NO_WORDS && options.patched_bytes == 0 && options.reserved == 0);
    CHECK(strcmp(rvm_type(rvm_far_options_id), "rvm_far_options_id") == 0);
}

static void refused(void)
{
    rvm_far_options_t options = options_of(16 * MIB, MIB), other;
    rvm_far_t far, none = (rvm_far_t)0x123456789abul;
    rvm_far_status_t status;
    const char *wrong[] = {"tcp://nowhere", NULL};
    void *memory, *more;

    EXPECT(rvm_far_open(NULL, &far), RVM_EOPTIONS);
    EXPECT(rvm_far_open(&options, NULL), RVM_ERANGE);
    other = options;
    other.insecure = rvm_false;
    EXPECT(rvm_far_open(&other, &far), RVM_EOPTIONS);
    CHECK(strstr(rvm_error_text(), "key_file") != NULL);
    other = options;
    other.local_bytes = PAGE;
    EXPECT(rvm_far_open(&other, &far), RVM_EOPTIONS);
    other = options;
    other.copies = 3;
    EXPECT(rvm_far_open(&other, &far), RVM_EOPTIONS);
    other = options;
    other.replacement = (rvm_far_replacement_t)9;
    EXPECT(rvm_far_open(&other, &far), RVM_EOPTIONS);
    other = options;
    other.words = 257;
    EXPECT(rvm_far_open(&other, &far), RVM_EOPTIONS);
    CHECK(strstr(rvm_error_text(), "from 1 to 256") != NULL);
    other.words = 1ul << 32;
    EXPECT(rvm_far_open(&other, &far), RVM_EOPTIONS);
    other.words = RVM_FAR_MEASURED_WORDS;
    other.patched_bytes = MIB;
    EXPECT(rvm_far_open(&other, &far), RVM_EOPTIONS);
    other = options;
    other.reserved = 1;
    EXPECT(rvm_far_open(&other, &far), RVM_EOPTIONS);
    other = options;
    other.lenders = wrong;
    other.n_lenders = 1;
    EXPECT(rvm_far_open(&other, &far), RVM_EOPTIONS);
    other.lenders = wrong + 1;
    EXPECT(rvm_far_open(&other, &far), RVM_EOPTIONS);
    other.n_lenders = 17;
    EXPECT(rvm_far_open(&other, &far), RVM_EOPTIONS);
    other = options;
    other.n_lenders = 0;
    EXPECT(rvm_far_open(&other, &far), RVM_EOPTIONS);
    other.spill = "not there";
    EXPECT(rvm_far_open(&other, &far), RVM_EIO);
    CHECK(errno == ENOENT);

    EXPECT(rvm_far_alloc(NULL, PAGE, &memory), RVM_EHANDLE);
    EXPECT(rvm_far_alloc(none, PAGE, &memory), RVM_EHANDLE);
    far = opened(&options);
    EXPECT(rvm_far_alloc(far, PAGE, NULL), RVM_ERANGE);
    EXPECT(rvm_far_alloc(far, 0, &memory), RVM_ERANGE);
    EXPECT(rvm_far_alloc(far, 17 * MIB, &memory), RVM_ENO_MEMORY);
    EXPECT(rvm_far_alloc(far, ~0ul, &memory), RVM_ENO_MEMORY);
    EXPECT(rvm_far_status(far, NULL), RVM_ERANGE);
    OK(rvm_far_alloc(far, 10 * MIB, &memory));
    CHECK((unsigned long)memory % PAGE == 0);
    EXPECT(rvm_far_alloc(far, 10 * MIB, &more), RVM_ENO_MEMORY);
    EXPECT(rvm_far_free(far, (char *)memory + PAGE), RVM_ERANGE);
    OK(rvm_far_free(far, NULL));
    OK(rvm_far_free(far, memory));
    EXPECT(rvm_far_free(far, memory), RVM_ERANGE);
    OK(rvm_far_alloc(far, 10 * MIB, &more));
    OK(rvm_far_close(far));
    EXPECT(rvm_far_close(far), RVM_EHANDLE);
    EXPECT(rvm_far_status(far, &status), RVM_EHANDLE);
    EXPECT(rvm_far_free(far, more), RVM_EHANDLE);
}

/* Sixteen times the cap; then zeros after a new allocation. */
static void larger(void)
{
    rvm_far_options_t options = options_of(64 * MIB, MIB);
    rvm_far_t far = opened(&options);
    rvm_far_status_t status;
    unsigned long count = 16 * MIB / sizeof(unsigned long), at, *numbers;
    void *memory;

    OK(rvm_far_alloc(far, 16 * MIB, &memory));
    numbers = (unsigned long *)memory;
    fill(numbers, count);
    check_filled(numbers, count);
    status = status_of(far);
    CHECK(status.cap == MIB / PAGE && status.used <= status.cap && status.lost == 0);
    CHECK(status.faults > 0 && status.fetched + status.ahead > 0 && status.sent > 0 && status.linked == options.n_lenders);
    OK(rvm_far_free(far, memory));
    OK(rvm_far_alloc(far, 16 * MIB, &memory));
    numbers = (unsigned long *)memory;
    for (at = 0; at < count; at++)
        CHECK(numbers[at] == 0);
    OK(rvm_far_close(far));
}

/* Without lenders, with a local disk. */
static void spilled(void)
{
    rvm_far_options_t options = options_of(16 * MIB, MIB);
    unsigned long count = 8 * MIB / sizeof(unsigned long);
    rvm_far_t far;
    void *memory;

    options.n_lenders = 0;
    options.insecure = rvm_false;
    options.spill = ".";
    options.packed_bytes = 0;
    far = opened(&options);
    OK(rvm_far_alloc(far, 8 * MIB, &memory));
    fill((unsigned long *)memory, count);
    check_filled((unsigned long *)memory, count);
    CHECK(status_of(far).linked == 0 && status_of(far).packed == 0);
    OK(rvm_far_close(far));
}

static void *one_of_several(void *argument)
{
    rvm_far_t far = (rvm_far_t)argument;
    unsigned long count = MIB / sizeof(unsigned long);
    void *memory;
    int round;

    for (round = 0; round < 4; round++) {
        OK(rvm_far_alloc(far, MIB, &memory));
        fill((unsigned long *)memory, count);
        check_filled((unsigned long *)memory, count);
        OK(rvm_far_free(far, memory));
    }
    return NULL;
}

static void at_once(void)
{
    rvm_far_options_t options = options_of(64 * MIB, MIB);
    rvm_far_t far = opened(&options);
    pthread_t threads[THREADS];
    int at;

    for (at = 0; at < THREADS; at++)
        CHECK(pthread_create(&threads[at], NULL, one_of_several, far) == 0);
    for (at = 0; at < THREADS; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    OK(rvm_far_close(far));
}

/* A child has no far memory: calls are refused, and an access is a fault. */
static void forked(void)
{
    rvm_far_options_t options = options_of(16 * MIB, MIB);
    rvm_far_t far = opened(&options);
    rvm_far_status_t status;
    void *memory;
    int ended;
    pid_t child;

    OK(rvm_far_alloc(far, PAGE, &memory));
    *(volatile char *)memory = 7;
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        EXPECT(rvm_far_status(far, &status), RVM_EINIT);
        signal(SIGSEGV, SIG_DFL);
        _exit(*(volatile char *)memory);
    }
    CHECK(waitpid(child, &ended, 0) == child);
    CHECK(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGSEGV);
    CHECK(*(volatile char *)memory == 7);
    OK(rvm_far_close(far));
}

#define COUNT (8 * MIB / sizeof(unsigned long))
#define SOME 4096ul

/* Indices all over the memory, all different. */
static void choose(rvm_length_t *indices, unsigned long seed)
{
    unsigned long at;

    for (at = 0; at < SOME; at++)
        indices[at] = (at * 257 + seed) % COUNT;
}

/* Far memory with this setting of words, filled with numbers, of which each lender has the remote ones. */
static rvm_far_t filled(rvm_length_t words, unsigned long **numbers)
{
    rvm_far_options_t options = options_of(64 * MIB, MIB);
    rvm_far_t far;
    void *memory;

    options.words = words;
    options.packed_bytes = 0;
    far = opened(&options);
    OK(rvm_far_alloc(far, 8 * MIB, &memory));
    *numbers = (unsigned long *)memory;
    fill(*numbers, COUNT);
    while (status_of(far).waiting > 0)
        usleep(1000);
    return far;
}

/* Far more elements are scattered and gathered than their pages could be transferred; then the pages have them. */
static void words(void)
{
    static rvm_length_t indices[SOME];
    static unsigned long values[SOME];
    rvm_far_status_t before, after;
    unsigned long *numbers, at;
    rvm_far_t far = filled(256, &numbers);

    choose(indices, 3);
    before = status_of(far);
    OK(rvm_far_gather(far, numbers, sizeof *numbers, indices, SOME, values));
    for (at = 0; at < SOME; at++)
        CHECK(values[at] == number(indices[at]));
    after = status_of(far);
    CHECK(after.words - before.words > SOME / 2);
    /* A page that was being sent may be transferred whole. */
    CHECK(after.fetched - before.fetched < SOME / 16);

    for (at = 0; at < SOME; at++)
        values[at] = ~number(indices[at]);
    OK(rvm_far_scatter(far, numbers, sizeof *numbers, indices, SOME, values));
    after = status_of(far);
    CHECK(after.written > 0);
    memset(values, 0, sizeof values);
    OK(rvm_far_gather(far, numbers, sizeof *numbers, indices, SOME, values));
    for (at = 0; at < SOME; at++)
        CHECK(values[at] == ~number(indices[at]));
    for (at = 0; at < SOME; at++) {
        CHECK(numbers[indices[at]] == ~number(indices[at]));
        CHECK(numbers[indices[at] + 1] == number(indices[at] + 1));
    }

    for (at = 0; at < SOME; at++)
        values[at] = at;
    OK(rvm_far_scatter_strided(far, numbers, sizeof *numbers, 5, COUNT / SOME, SOME, values));
    memset(values, 0, sizeof values);
    OK(rvm_far_gather_strided(far, numbers, sizeof *numbers, 5, COUNT / SOME, SOME, values));
    for (at = 0; at < SOME; at++)
        CHECK(values[at] == at && numbers[5 + at * (COUNT / SOME)] == at);
    CHECK(status_of(far).lost == 0);
    OK(rvm_far_close(far));
}

/* Without words the same calls move pages; arrays may lie in far memory, and elements may span pages. */
static void pages_for_words(void)
{
    unsigned long *numbers, at;
    rvm_far_t far = filled(RVM_FAR_NO_WORDS, &numbers);
    rvm_length_t odd[3] = {COUNT * 8 / 16384 - 1, 0, 7}, *indices;
    unsigned long *values;
    void *memory;

    OK(rvm_far_alloc(far, SOME * sizeof *indices, &memory));
    indices = (rvm_length_t *)memory;
    OK(rvm_far_alloc(far, SOME * sizeof *values, &memory));
    values = (unsigned long *)memory;
    choose(indices, 11);
    OK(rvm_far_gather(far, numbers, sizeof *numbers, indices, SOME, values));
    for (at = 0; at < SOME; at++)
        CHECK(values[at] == number(indices[at]));
    OK(rvm_far_scatter_strided(far, numbers, sizeof *numbers, 0, 1, SOME, values));
    for (at = 0; at < SOME; at++)
        CHECK(numbers[at] == number(indices[at]));
    fill(numbers, SOME);
    OK(rvm_far_gather(far, numbers, 16384, odd, 3, numbers + COUNT / 2));
    check_filled(numbers, COUNT / 2);
    for (at = 0; at < 3 * 2048; at++)
        CHECK(numbers[COUNT / 2 + at] == number(odd[at / 2048] * 2048 + at % 2048));
    CHECK(status_of(far).words == 0 && status_of(far).written == 0);
    OK(rvm_far_close(far));
}

static void refused_words(void)
{
    rvm_far_options_t options = options_of(16 * MIB, MIB);
    rvm_far_t far;
    rvm_length_t indices[4] = {0, 1, 511, 512};
    unsigned long values[4] = {1, 2, 3, 4};
    void *memory;
    char *odd = (char *)indices + 1;

    options.words = RVM_FAR_MEASURED_WORDS;
    far = opened(&options);
    OK(rvm_far_alloc(far, PAGE, &memory));
    EXPECT(rvm_far_gather(NULL, memory, 8, indices, 3, values), RVM_EHANDLE);
    EXPECT(rvm_far_gather(far, NULL, 8, indices, 3, values), RVM_ERANGE);
    EXPECT(rvm_far_gather(far, values, 8, indices, 3, values), RVM_ERANGE);
    EXPECT(rvm_far_gather(far, (char *)memory + 8, 8, indices, 3, values), RVM_ERANGE);
    EXPECT(rvm_far_gather(far, memory, 8, NULL, 3, values), RVM_ERANGE);
    EXPECT(rvm_far_gather(far, memory, 8, (rvm_length_t *)odd, 2, values), RVM_ERANGE);
    EXPECT(rvm_far_gather(far, memory, 8, indices, 3, NULL), RVM_ERANGE);
    EXPECT(rvm_far_gather(far, memory, 0, indices, 3, values), RVM_ERANGE);
    EXPECT(rvm_far_gather(far, memory, 3, indices, 3, values), RVM_ERANGE);
    EXPECT(rvm_far_gather(far, memory, 8192, indices, 1, values), RVM_ERANGE);
    EXPECT(rvm_far_gather(far, memory, 65537, indices, 1, values), RVM_ERANGE);
    EXPECT(rvm_far_gather(far, memory, ~0ul, indices, 1, values), RVM_ERANGE);
    EXPECT(rvm_far_gather(far, memory, 8, indices, ~0ul, values), RVM_ERANGE);
    EXPECT(rvm_far_gather(far, memory, 1, indices, ~0ul >> 2, values), RVM_ERANGE);
    EXPECT(rvm_far_gather_strided(far, memory, 8, ~0ul, 1, 1, values), RVM_ERANGE);
    EXPECT(rvm_far_gather_strided(far, memory, 8, 1, ~0ul, 3, values), RVM_ERANGE);
    EXPECT(rvm_far_gather_strided(far, memory, 8, 1, 1, 512, values), RVM_ERANGE);

    /* One index that is too large, and no element is stored. */
    EXPECT(rvm_far_scatter(far, memory, 8, indices, 4, values), RVM_ERANGE);
    CHECK(strstr(rvm_error_text(), "element 512 is out of range") != NULL);
    CHECK(((unsigned long *)memory)[0] == 0 && ((unsigned long *)memory)[511] == 0);
    OK(rvm_far_scatter(far, memory, 8, indices, 3, values));
    CHECK(((unsigned long *)memory)[511] == 3);
    OK(rvm_far_gather(far, memory, 8, NULL, 0, NULL));
    OK(rvm_far_scatter_strided(far, memory, 8, 0, 0, 4, values));
    CHECK(((unsigned long *)memory)[0] == 4);
    OK(rvm_far_free(far, memory));
    EXPECT(rvm_far_gather(far, memory, 8, indices, 3, values), RVM_ERANGE);
    OK(rvm_far_close(far));
    EXPECT(rvm_far_scatter(far, memory, 8, indices, 3, values), RVM_EHANDLE);
}

static rvm_far_t shared_far;
static void *shared_memory;

/* Gathers until the memory is freed: the result is right, or an error. */
static void *gathers_until_it_is_gone(void *argument)
{
    static const rvm_length_t indices[2] = {0, COUNT - 1};
    unsigned long values[2];
    rvm_return_t code;

    (void)argument;
    while ((code = rvm_far_gather(shared_far, shared_memory, sizeof *values, indices, 2, values)) == RVM_SUCCESS)
        CHECK(values[0] == number(0) && values[1] == number(COUNT - 1));
    EXPECT(code, RVM_ERANGE);
    return NULL;
}

static void words_at_once(void)
{
    pthread_t threads[THREADS];
    unsigned long *numbers;
    int at;

    shared_far = filled(RVM_FAR_MEASURED_WORDS, &numbers);
    shared_memory = numbers;
    for (at = 0; at < THREADS; at++)
        CHECK(pthread_create(&threads[at], NULL, gathers_until_it_is_gone, NULL) == 0);
    usleep(20000);
    OK(rvm_far_free(shared_far, shared_memory));
    for (at = 0; at < THREADS; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    OK(rvm_far_close(shared_far));
}

/* Reports when both lenders have all pages, and continues after one of them is gone. */
static void survives(void)
{
    rvm_far_options_t options = options_of(16 * MIB, MIB);
    unsigned long count = 8 * MIB / sizeof(unsigned long);
    rvm_far_t far = opened(&options);
    rvm_far_status_t status;
    void *memory;

    OK(rvm_far_alloc(far, 8 * MIB, &memory));
    fill((unsigned long *)memory, count);
    do {
        usleep(1000);
        status = status_of(far);
    } while (status.short_pages > 0 || status.waiting > 0 || status.sent == 0);
    printf("both have it\n");
    fflush(stdout);
    CHECK(getchar() == '\n');
    check_filled((unsigned long *)memory, count);
    CHECK(status_of(far).lost == 0);
    OK(rvm_far_close(far));
}

MAIN(CASE(layout), CASE(refused), CASE(larger), CASE(spilled), CASE(at_once), CASE(forked), CASE(words), CASE(pages_for_words),
     CASE(refused_words), CASE(words_at_once), CASE(survives))
