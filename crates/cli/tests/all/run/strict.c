/* With ALLOCATOR a library: an allocator that ends the process if a thread of far memory wants memory of it once that
 * has been forbidden. Its memory lies in far memory, and whoever serves that must not need it. Without, a program that
 * has this allocator. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifdef ALLOCATOR

#define CHUNK (1UL << 20)
#define HEAD 16UL

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *at, *end;
static volatile int is_strict;

void be_strict(void) { is_strict = 1; }

static void check(void)
{
	static const char said[] = "a thread of far memory allocates by the program's allocator\n";
	char name[16] = "";
	prctl(PR_GET_NAME, name);
	if (is_strict && !strncmp(name, "netram-", 7)) {
		if (write(2, said, sizeof said - 1) < 0)
			_exit(10);
		_exit(9);
	}
}

void *memalign(size_t align, size_t bytes)
{
	check();
	if (align < HEAD)
		align = HEAD;
	pthread_mutex_lock(&lock);
	char *block = (char *)(((uintptr_t)at + HEAD + align - 1) / align * align);
	if (!at || block + bytes > end) {
		size_t chunk = bytes + align + HEAD > CHUNK ? bytes + align + HEAD : CHUNK;
		at = mmap(NULL, chunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		end = at + chunk;
		block = (char *)(((uintptr_t)at + HEAD + align - 1) / align * align);
	}
	at = block + bytes;
	pthread_mutex_unlock(&lock);
	((size_t *)block)[-1] = bytes;
	return block;
}

void *malloc(size_t bytes) { return memalign(HEAD, bytes); }
void *calloc(size_t count, size_t bytes) { return memalign(HEAD, count * bytes); }
void *aligned_alloc(size_t align, size_t bytes) { return memalign(align, bytes); }
void *valloc(size_t bytes) { return memalign(4096, bytes); }
void *pvalloc(size_t bytes) { return memalign(4096, (bytes + 4095) / 4096 * 4096); }
size_t malloc_usable_size(void *block) { return block ? ((size_t *)block)[-1] : 0; }
void free(void *block) { (void)block; }

int posix_memalign(void **into, size_t align, size_t bytes)
{
	*into = memalign(align, bytes);
	return 0;
}

void *realloc(void *old, size_t bytes)
{
	size_t had = malloc_usable_size(old);
	void *new = malloc(bytes);
	if (old)
		memcpy(new, old, had < bytes ? had : bytes);
	return new;
}

void *reallocarray(void *old, size_t count, size_t bytes) { return realloc(old, count * bytes); }

#else

void be_strict(void);

static void *nothing(void *given) { return given; }

int main(int count, char **words)
{
	enum { WORDS = 1 << 20 };
	if (count != 2 || strcmp(words[1], "waits"))
		return 2;
	/* What this thread leaves, the next one that begins would take. */
	pthread_t thread;
	if (pthread_create(&thread, NULL, nothing, NULL) || pthread_join(thread, NULL))
		return 3;
	be_strict();
	uint64_t *all = malloc(WORDS * sizeof *all);
	for (uint64_t at = 0; at < WORDS; at++)
		all[at] = at * 0x9E3779B97F4A7C15UL;
	puts("written");
	fflush(stdout);
	char line[16];
	if (!fgets(line, sizeof line, stdin))
		return 4;
	for (uint64_t at = 0; at < WORDS; at++)
		if (all[at] != at * 0x9E3779B97F4A7C15UL)
			return 5;
	puts("same");
	return 0;
}

#endif
