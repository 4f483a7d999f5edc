/* A program that brings its own allocator, as many that are linked statically to one do: small blocks out of large pieces that it maps. It has not all
 * of the C library's functions, and whoever has the others has to call these. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MIB (1UL << 20)

struct head {
	size_t bytes, unused;
};
static char *piece;
static size_t left;

void *malloc(size_t bytes)
{
	size_t taken = (bytes + 15) / 16 * 16 + sizeof(struct head);
	if (taken < bytes)
		return errno = ENOMEM, NULL;
	if (taken > left) {
		size_t more = taken > MIB ? taken : MIB;
		char *mapped = mmap(NULL, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (mapped == MAP_FAILED)
			return NULL;
		piece = mapped;
		left = more;
	}
	struct head *head = (struct head *)piece;
	piece += taken;
	left -= taken;
	head->bytes = bytes;
	head->unused = 0x0F0F;
	return head + 1;
}

void free(void *block)
{
	/* What was not had here is found out. */
	if (block && ((struct head *)block)[-1].unused != 0x0F0F)
		abort();
}

void *calloc(size_t count, size_t each)
{
	void *block = malloc(count * each);
	return block ? memset(block, 0, count * each) : NULL;
}

void *realloc(void *old, size_t bytes)
{
	void *block = malloc(bytes);
	if (old && block)
		memcpy(block, old, ((struct head *)old)[-1].bytes < bytes ? ((struct head *)old)[-1].bytes : bytes);
	free(old);
	return block;
}

int main(void)
{
	enum { COUNT = 4000 };
	static char *all[COUNT];
	for (int at = 0; at < COUNT; at++) {
		all[at] = malloc(100 + at % 4000);
		memset(all[at], at, 100 + at % 4000);
		if (at % 3 == 0)
			all[at] = reallocarray(all[at], 2, 100 + at % 4000);
	}
	char *large = malloc(8 * MIB);
	memset(large, 7, 8 * MIB);
	/* By the C library's own functions, which allocate by these. */
	char *line = NULL;
	if (asprintf(&line, "%0*d", 300000, 5) != 300000)
		return puts("no line"), 1;
	free(line);
	free(realpath("/", NULL));
	for (int at = 0; at < COUNT; at++) {
		for (int byte = 0; byte < 100 + at % 4000; byte++)
			if (all[at][byte] != (char)at)
				return puts("wrong byte"), 1;
		free(all[at]);
	}
	for (size_t at = 0; at < 8 * MIB; at++)
		if (large[at] != 7)
			return puts("wrong byte"), 1;
	return puts("ok"), 0;
}
