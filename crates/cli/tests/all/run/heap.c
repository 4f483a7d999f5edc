/* A program as any other, and what it may do to its heap. Each part checks what it wrote, and says what it found; without far memory it
 * says the same. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB 1024UL
#define MIB (1024 * KIB)
#define PAGE 4096UL

#define CHECK(condition)                                                        \
	do {                                                                        \
		if (!(condition)) {                                                     \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			exit(3);                                                            \
		}                                                                       \
	} while (0)

static uint64_t word(uint64_t seed, uint64_t at) { return (seed << 40 ^ at) * 0x9E3779B97F4A7C15UL; }

static void fill(uint64_t *words, size_t bytes, uint64_t seed)
{
	for (size_t at = 0; at < bytes / 8; at++)
		words[at] = word(seed, at);
}

static void verify(const uint64_t *words, size_t bytes, uint64_t seed)
{
	for (size_t at = 0; at < bytes / 8; at++)
		CHECK(words[at] == word(seed, at));
}

static void zeros(const void *memory, size_t bytes)
{
	const uint64_t *words = memory;
	for (size_t at = 0; at < bytes / 8; at++)
		CHECK(words[at] == 0);
}

/* Each has memory of its own, and looks at it while others make it leave. */
static void *worker(void *number)
{
	uint64_t seed = (uint64_t)(uintptr_t)number;
	uint64_t *words = malloc(2 * MIB);
	CHECK(words);
	for (uint64_t round = 1; round <= 3; round++) {
		fill(words, 2 * MIB, seed * 100 + round);
		verify(words, 2 * MIB, seed * 100 + round);
		uint64_t *more = malloc(256 * KIB);
		fill(more, 256 * KIB, seed);
		verify(more, 256 * KIB, seed);
		free(more);
	}
	free(words);
	return number;
}

static void threads(void)
{
	pthread_t all[4];
	for (uintptr_t at = 0; at < 4; at++)
		CHECK(pthread_create(&all[at], NULL, worker, (void *)(at + 1)) == 0);
	for (uintptr_t at = 0; at < 4; at++) {
		void *ended;
		CHECK(pthread_join(all[at], &ended) == 0 && ended == (void *)(at + 1));
	}
}

static void allocations(void)
{
	uint64_t *dirty = malloc(4 * MIB);
	fill(dirty, 4 * MIB, 1);
	free(dirty);
	uint64_t *clean = calloc(4, MIB);
	zeros(clean, 4 * MIB);
	CHECK(malloc_usable_size(clean) >= 4 * MIB);
	fill(clean, 4 * MIB, 2);

	/* From the C library's heap into far memory, larger and larger, and back. */
	uint64_t *grown = malloc(64 * KIB);
	fill(grown, 64 * KIB, 3);
	for (size_t bytes = 64 * KIB; bytes < 4 * MIB; bytes *= 2) {
		grown = realloc(grown, 2 * bytes);
		CHECK(grown);
		verify(grown, bytes, 3);
		fill(grown, 2 * bytes, 3);
		/* Something behind it, so that it cannot always grow where it is. */
		free(malloc(300 * KIB));
	}
	verify(grown, 4 * MIB, 3);
	grown = realloc(grown, 3 * MIB + 5);
	verify(grown, 3 * MIB, 3);
	grown = reallocarray(grown, 10, KIB);
	verify(grown, 10 * KIB, 3);
	free(grown);
	verify(clean, 4 * MIB, 2);
	free(clean);
	/* Not known to the compiler, which would complain. */
	volatile size_t many = SIZE_MAX;
	CHECK(!reallocarray(NULL, many, 2) && !calloc(many, 2) && errno == ENOMEM);
	CHECK(!malloc(many >> 4) && errno == ENOMEM);

	void *aligned = NULL;
	CHECK(posix_memalign(&aligned, 64 * KIB, 200 * KIB) == 0 && (uintptr_t)aligned % (64 * KIB) == 0);
	fill(aligned, 200 * KIB, 9);
	verify(aligned, 200 * KIB, 9);
	CHECK(posix_memalign(&(void *){ NULL }, 3, 200 * KIB) == EINVAL);
	void *others[] = { aligned_alloc(MIB, MIB), memalign(128 * KIB, 150 * KIB), valloc(150 * KIB), pvalloc(150 * KIB) };
	CHECK((uintptr_t)others[0] % MIB == 0 && (uintptr_t)others[1] % (128 * KIB) == 0);
	CHECK((uintptr_t)others[2] % PAGE == 0 && (uintptr_t)others[3] % PAGE == 0);
	for (int at = 0; at < 4; at++) {
		fill(others[at], 150 * KIB, at);
		verify(others[at], 150 * KIB, at);
		free(others[at]);
	}
	free(aligned);
}

/* Many allocations, of a few pages each or less, that come and go in no order. */
static void *scraps(void *number)
{
	enum { COUNT = 200 };
	struct {
		uint64_t *words;
		size_t bytes;
	} all[COUNT] = { { NULL, 0 } };
	uint64_t state = (uintptr_t)number;
	for (int step = 0; step < 1500; step++) {
		state = state * 6364136223846793005UL + 1442695040888963407UL;
		size_t at = (state >> 33) % COUNT, bytes = 8 * (100 + (state >> 50) % 5000);
		if (all[at].words)
			verify(all[at].words, all[at].bytes, at);
		switch ((state >> 20) % 4) {
		case 0:
			free(all[at].words);
			all[at].words = NULL;
			continue;
		case 1:
			free(all[at].words);
			all[at].words = calloc(1, bytes);
			zeros(all[at].words, bytes);
			break;
		default:
			all[at].words = realloc(all[at].words, bytes);
			if (all[at].bytes && all[at].words && (state >> 20) % 4 == 2)
				CHECK(malloc_usable_size(all[at].words) >= bytes);
		}
		CHECK(all[at].words);
		all[at].bytes = bytes;
		fill(all[at].words, bytes, at);
	}
	for (size_t at = 0; at < COUNT; at++) {
		if (all[at].words)
			verify(all[at].words, all[at].bytes, at);
		free(all[at].words);
	}
	return number;
}

static void crumbles(void)
{
	pthread_t other;
	CHECK(pthread_create(&other, NULL, scraps, (void *)7) == 0);
	scraps((void *)8);
	CHECK(pthread_join(other, NULL) == 0);
	puts("all is as it was written");
}

static char *map(size_t bytes)
{
	char *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(mapped != MAP_FAILED);
	return mapped;
}

static void mappings(void)
{
	char *mapped = map(4 * MIB);
	zeros(mapped, 4 * MIB);
	fill((uint64_t *)mapped, 4 * MIB, 5);
	/* Thrown away at once, or when the kernel likes: zeros, or what it was. */
	CHECK(madvise(mapped + MIB, MIB, MADV_DONTNEED) == 0);
	zeros(mapped + MIB, MIB);
	madvise(mapped, 4 * MIB, MADV_HUGEPAGE);
	CHECK(madvise(mapped + 3 * MIB, MIB, MADV_FREE) == 0);
	memset(mapped + 3 * MIB, 7, MIB);
	verify((uint64_t *)mapped, MIB, 5);
	/* A hole, and mappings beside it that stay. */
	CHECK(munmap(mapped + MIB, MIB) == 0);
	verify((uint64_t *)mapped, MIB, 5);
	for (size_t at = 0; at < MIB; at++)
		CHECK(mapped[3 * MIB + at] == 7);
	CHECK(munmap(mapped + 2 * MIB, 2 * MIB) == 0);
	/* Larger, wherever; smaller, where it is. */
	char *moved = mremap(mapped, MIB, 3 * MIB, MREMAP_MAYMOVE);
	CHECK(moved != MAP_FAILED);
	verify((uint64_t *)moved, MIB, 5);
	zeros(moved + MIB, 2 * MIB);
	CHECK(mremap(moved, 3 * MIB, MIB, 0) == moved);
	/* Plain memory over plain memory makes zeros of it. */
	CHECK(mmap(moved, MIB / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == moved);
	zeros(moved, MIB / 2);
	CHECK(moved[MIB / 2] == *(char *)&(uint64_t){ word(5, MIB / 16) });
	CHECK(munmap(moved, MIB) == 0);
	/* What was protected is plain memory for the next one. */
	mapped = map(MIB);
	fill((uint64_t *)mapped, MIB, 6);
	CHECK(mprotect(mapped, MIB, PROT_READ) == 0);
	verify((uint64_t *)mapped, MIB, 6);
	CHECK(munmap(mapped, MIB) == 0);
	mapped = map(MIB);
	fill((uint64_t *)mapped, MIB, 7);
	/* System calls read and write there. */
	int ends[2];
	CHECK(pipe(ends) == 0);
	CHECK(write(ends[1], mapped, 32 * KIB) == 32 * KIB && read(ends[0], mapped + 64 * KIB, 32 * KIB) == 32 * KIB);
	verify((uint64_t *)(mapped + 64 * KIB), 32 * KIB, 7);
	CHECK(munmap(mapped, MIB) == 0);
}

static void works(void)
{
	threads();
	allocations();
	mappings();
	puts("all is as it was written");
}

static int ended(pid_t child)
{
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	return status;
}

/* What children have of their parent's heap. */
static void children(void)
{
	uint64_t *words = malloc(4 * MIB);
	fill(words, 4 * MIB, 1);
	CHECK(system("exit 7") >> 8 == 7);
	pid_t child = vfork();
	if (child == 0) {
		/* In its parent's memory. */
		execl("/bin/true", words[0] == word(1, 0) ? "true" : "false", NULL);
		_exit(1);
	}
	CHECK(ended(child) == 0);
	child = fork();
	if (child == 0) {
		char *large = malloc(MIB);
		memset(large, 1, MIB);
		free(large);
		execl("/bin/sh", "sh", "-c", "test -z \"$LD_PRELOAD$NETRAM_RUN_SETTINGS\"", NULL);
		_exit(1);
	}
	CHECK(ended(child) == 0);
	child = fork();
	if (child == 0)
		_exit(words[100] == 0 ? 9 : 0);
	int status = ended(child);
	if (WIFSIGNALED(status))
		printf("signal %d\n", WTERMSIG(status));
	else
		printf("code %d\n", WEXITSTATUS(status));
	verify(words, 4 * MIB, 1);
	free(words);
}

/* What must not be done to far memory is refused, and the heap is as it was. */
static void refusals(void)
{
	char *mapped = map(MIB);
	fill((uint64_t *)mapped, MIB, 1);
	CHECK(mlock(mapped, MIB) == -1 && errno == ENOMEM);
	CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == -1);
	/* All descriptors, as daemons close them. */
	for (int fd = 3; fd < 256; fd++)
		close(fd);
	char *more = malloc(8 * MIB);
	fill((uint64_t *)more, 8 * MIB, 2);
	verify((uint64_t *)more, 8 * MIB, 2);
	verify((uint64_t *)mapped, MIB, 1);
	puts("refused");
}

/* Writes, waits for a word, and looks. */
static void waits(void)
{
	uint64_t *words = malloc(8 * MIB);
	fill(words, 8 * MIB, 1);
	puts("written");
	fflush(stdout);
	char line[16];
	CHECK(fgets(line, sizeof line, stdin));
	verify(words, 8 * MIB, 1);
	puts("same");
}

/* Writes, waits for a word, and looks at a page in sixty-four: of what it wrote first, which is away. */
static void peeks(void)
{
	uint64_t *words = malloc(8 * MIB);
	fill(words, 8 * MIB, 1);
	puts("written");
	fflush(stdout);
	char line[16];
	CHECK(fgets(line, sizeof line, stdin));
	for (size_t at = 0; at < 4 * MIB; at += 64 * 4 * KIB)
		CHECK(words[at / 8] == word(1, at / 8));
	puts("same");
}

/* Takes and writes memory until there is none. */
static void hoards(void)
{
	enum { MOST = 100000 };
	size_t count = 0;
	for (char *block; count < MOST && (block = malloc(4 * KIB)); count++)
		memset(block, 1, 4 * KIB);
	puts(count < MOST ? "refused" : "endless");
}

int main(int count, char **words)
{
	CHECK(count == 2);
	struct {
		const char *name;
		void (*part)(void);
	} parts[] = { { "works", works }, { "crumbles", crumbles }, { "children", children }, { "refusals", refusals }, { "waits", waits }, { "peeks", peeks }, { "hoards", hoards } };
	for (size_t at = 0; at < sizeof parts / sizeof *parts; at++) {
		if (!strcmp(words[1], parts[at].name)) {
			parts[at].part();
			return 0;
		}
	}
	return 2;
}
