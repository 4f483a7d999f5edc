/* Sizes, alignments and places that are refused, or not, with far memory as without. It says what it found; nothing that it has gets lost. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KIB 1024UL
#define MIB (1024 * KIB)
#define PAGE 4096UL

#define CHECK(condition)                                                        \
	do {                                                                        \
		if (!(condition)) {                                                     \
			fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #condition, strerror(errno)); \
			exit(3);                                                            \
		}                                                                       \
	} while (0)

static const int READ_WRITE = PROT_READ | PROT_WRITE, PLAIN = MAP_PRIVATE | MAP_ANONYMOUS;

static char *map(size_t bytes, int fill)
{
	char *mapped = mmap(NULL, bytes, READ_WRITE, PLAIN, -1, 0);
	CHECK(mapped != MAP_FAILED);
	memset(mapped, fill, bytes);
	return mapped;
}

static void all(const char *bytes, size_t count, int what)
{
	for (size_t at = 0; at < count; at += 512)
		CHECK(bytes[at] == (char)what);
}

static void says(const char *what, size_t bytes, const void *got)
{
	int error = errno;
	printf("%s %zx: %s\n", what, bytes, got && got != MAP_FAILED ? "given" : strerror(error));
}

static void sizes(void)
{
	/* Nor what is called: a block that was not given another size stays. */
	void *(*volatile resize)(void *, size_t) = realloc, *(*volatile resize_array)(void *, size_t, size_t) = reallocarray;
	/* Not known to the compiler. */
	volatile size_t huge[] = { 1UL << 44, 1UL << 48, (1UL << 63) - PAGE, 1UL << 63, SIZE_MAX - 2 * PAGE, SIZE_MAX - PAGE + 1, SIZE_MAX - 1, SIZE_MAX };
	char *block = malloc(8 * MIB), *mapped = map(4 * MIB, 6);
	memset(block, 7, 8 * MIB);
	for (size_t at = 0; at < sizeof huge / sizeof *huge; at++) {
		size_t bytes = huge[at];
		says("malloc", bytes, malloc(bytes));
		says("calloc", bytes, calloc(1, bytes));
		says("realloc", bytes, resize(block, bytes));
		says("reallocarray", bytes, resize_array(block, bytes, 3));
		says("valloc", bytes, valloc(bytes));
		says("pvalloc", bytes, pvalloc(bytes));
		says("aligned_alloc", bytes, aligned_alloc(2 * MIB, bytes));
		void *aligned = NULL;
		printf("posix_memalign %zx: %s\n", bytes, strerror(posix_memalign(&aligned, 2 * MIB, bytes)));
		says("mmap", bytes, mmap(NULL, bytes, READ_WRITE, PLAIN, -1, 0));
		says("mremap", bytes, mremap(mapped, 4 * MIB, bytes, MREMAP_MAYMOVE));
		says("mremap in place", bytes, mremap(mapped, 4 * MIB, bytes, 0));
		says("munmap", bytes, munmap(mapped, bytes) ? NULL : mapped);
		all(block, 8 * MIB, 7);
		all(mapped, 4 * MIB, 6);
	}
	CHECK(mremap(mapped, 4 * MIB, 0, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
	char *other = malloc(8 * MIB);
	CHECK(other && other != block);
	CHECK(resize(block, 9 * MIB) && malloc_usable_size(other) >= 8 * MIB);
}

static void alignments(void)
{
	for (size_t align = 4 * KIB; align <= 1UL << 30; align *= 2) {
		void *aligned = NULL;
		CHECK(posix_memalign(&aligned, align, 300 * KIB) == 0 && (uintptr_t)aligned % align == 0);
		memset(aligned, 1, 300 * KIB);
		char *second = memalign(align, 200 * KIB);
		CHECK(second && (uintptr_t)second % align == 0);
		memset(second, 2, 200 * KIB);
		all(aligned, 300 * KIB, 1);
		free(aligned);
		all(second, 200 * KIB, 2);
		free(second);
	}
	volatile size_t odd[] = { 0, 3, 24, 1UL << 46, 1UL << 62, 1UL << 63, (1UL << 63) + 1, SIZE_MAX };
	for (size_t at = 0; at < sizeof odd / sizeof *odd; at++) {
		void *aligned = NULL;
		printf("posix_memalign to %zx: %s\n", odd[at], strerror(posix_memalign(&aligned, odd[at], 300 * KIB)));
		says("memalign to", odd[at], memalign(odd[at], 300 * KIB));
	}
}

/* Whether the kernel leaves the page out of a core dump: a flag of its mapping in smaps. */
static int left_out(const char *page)
{
	FILE *maps = fopen("/proc/self/smaps", "r");
	char line[512];
	int inside = 0, found = -1;
	CHECK(maps);
	while (fgets(line, sizeof line, maps)) {
		unsigned long start, end;
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = start <= (uintptr_t)page && (uintptr_t)page < end;
		else if (inside && strncmp(line, "VmFlags:", 8) == 0)
			found = strstr(line, " dd") != NULL;
	}
	CHECK(fclose(maps) == 0 && found >= 0);
	return found;
}

/* A program's secrets stay out of core dumps. A success without effect was worse than a refusal. */
static void secrets(void)
{
	char *mapped = map(4 * MIB, 5);
	CHECK(!left_out(mapped + MIB));
	CHECK(madvise(mapped + MIB, 2 * PAGE, MADV_DONTDUMP) == 0);
	CHECK(!left_out(mapped + MIB - PAGE) && left_out(mapped + MIB) && left_out(mapped + MIB + PAGE));
	CHECK(!left_out(mapped + MIB + 2 * PAGE));
	CHECK(madvise(mapped + MIB + 1, PAGE, MADV_DONTDUMP) == -1 && errno == EINVAL);
	all(mapped, 4 * MIB, 5);
	CHECK(madvise(mapped + MIB, PAGE, MADV_DODUMP) == 0);
	CHECK(!left_out(mapped + MIB) && left_out(mapped + MIB + PAGE));
	CHECK(munmap(mapped, 4 * MIB) == 0);
}

/* What a program does to memory that it has mapped. */
static void places(void)
{
	char *mapped = map(4 * MIB, 5);
	/* Into a hole, and over its edges. */
	CHECK(munmap(mapped + MIB, MIB) == 0);
	CHECK(mmap(mapped + MIB, MIB / 2, READ_WRITE, PLAIN | MAP_FIXED, -1, 0) == mapped + MIB);
	all(mapped + MIB, MIB / 2, 0);
	memset(mapped + MIB, 8, MIB / 2);
	CHECK(mmap(mapped + MIB + MIB / 2, MIB / 2, READ_WRITE, PLAIN | MAP_FIXED_NOREPLACE, -1, 0) == mapped + MIB + MIB / 2);
	CHECK(mmap(mapped + MIB, MIB, READ_WRITE, PLAIN | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED && errno == EEXIST);
	all(mapped, MIB, 5);
	all(mapped + MIB, MIB / 2, 8);
	all(mapped + 2 * MIB, 2 * MIB, 5);
	CHECK(munmap(mapped + MIB, MIB) == 0);
	CHECK(mmap(mapped + MIB - PAGE, MIB + 2 * PAGE, PROT_READ, PLAIN | MAP_FIXED, -1, 0) == mapped + MIB - PAGE);
	all(mapped + MIB - PAGE, MIB + 2 * PAGE, 0);
	CHECK(mprotect(mapped + MIB - PAGE, MIB + 2 * PAGE, READ_WRITE) == 0);
	memset(mapped, 5, 4 * MIB);

	/* A file, and memory that is shared, in the middle of it; and plain memory again. */
	FILE *file = tmpfile();
	CHECK(file && ftruncate(fileno(file), 64 * KIB) == 0 && fwrite("text", 4, 1, file) == 1 && fflush(file) == 0);
	CHECK(mmap(mapped + MIB, 64 * KIB, READ_WRITE, MAP_SHARED | MAP_FIXED, fileno(file), 0) == mapped + MIB);
	CHECK(!memcmp(mapped + MIB, "text", 4));
	memcpy(mapped + MIB, "word", 4);
	char word[4];
	CHECK(pread(fileno(file), word, 4, 0) == 4 && !memcmp(word, "word", 4));
	CHECK(mmap(mapped + MIB + 64 * KIB, 64 * KIB, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
	memset(mapped + MIB + 64 * KIB, 9, 64 * KIB);
	CHECK(madvise(mapped + MIB, 128 * KIB, MADV_DONTNEED) == 0);
	all(mapped + MIB + 64 * KIB, 64 * KIB, 9);
	all(mapped, MIB, 5);
	all(mapped + MIB + 128 * KIB, 2 * MIB, 5);
	CHECK(mmap(mapped + MIB - 64 * KIB, 128 * KIB, READ_WRITE, PLAIN | MAP_FIXED, -1, 0) == mapped + MIB - 64 * KIB);
	all(mapped + MIB - 64 * KIB, 128 * KIB, 0);
	/* What cannot be mapped leaves what is there. */
	CHECK(mmap(mapped, 64 * KIB, PROT_READ, MAP_SHARED | MAP_FIXED, 999, 0) == MAP_FAILED && errno == EBADF);
	CHECK(mmap(mapped + 1, 64 * KIB, READ_WRITE, PLAIN | MAP_FIXED, -1, 0) == MAP_FAILED && errno == EINVAL);
	all(mapped, MIB - 64 * KIB, 5);
	CHECK(munmap(mapped, 4 * MIB) == 0);

	/* Moved to a place of the program's choice, with and without what it leaves. */
	char *from = map(MIB, 3), *to = map(2 * MIB, 4);
	CHECK(mremap(from, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, to + MIB / 2) == to + MIB / 2);
	all(to, MIB / 2, 4);
	all(to + MIB / 2, MIB, 3);
	all(to + MIB + MIB / 2, MIB / 2, 4);
	CHECK(mremap(to, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, to + MIB / 2) == MAP_FAILED && errno == EINVAL);
	char *whole = map(2 * MIB, 3), *left = mremap(whole, 2 * MIB, 2 * MIB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	CHECK(left != MAP_FAILED && left != whole);
	all(left, 2 * MIB, 3);
	all(whole, 2 * MIB, 0);
	/* Out to what the kernel reserved, and back. */
	char *outside = mmap(NULL, 2 * MIB, PROT_NONE, PLAIN | MAP_NORESERVE, -1, 0);
	CHECK(mremap(left, 2 * MIB, 2 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, outside) == outside);
	all(outside, 2 * MIB, 3);
	CHECK(mremap(outside, 2 * MIB, 2 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
	all(to, 2 * MIB, 3);
	CHECK(munmap(to, 2 * MIB) == 0);
	errno = 0;
	CHECK(madvise(map(MIB, 1) + 1, PAGE, MADV_SEQUENTIAL) == -1 && errno == EINVAL);
}

int main(void)
{
	sizes();
	alignments();
	places();
	secrets();
	puts("all is as it was written");
}
