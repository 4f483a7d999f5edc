/* Children of fork that use their parent's memory: at once, later, or without what they need for that. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1UL << 20)

#define CHECK(condition)                                                        \
	do {                                                                        \
		if (!(condition)) {                                                     \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			_exit(3);                                                           \
		}                                                                       \
	} while (0)

enum { BYTES = 8 * MIB, PROTECTED = 4 * MIB };

static void filled(char *memory, int with)
{
	for (size_t at = 0; at < BYTES; at += 8) {
		if (at / 4096 != PROTECTED / 4096)
			CHECK(*(uint64_t *)(memory + at) == at * 31 + with);
	}
}

static void fill(char *memory, int with)
{
	for (size_t at = 0; at < BYTES; at += 8) {
		if (at / 4096 != PROTECTED / 4096)
			*(uint64_t *)(memory + at) = at * 31 + with;
	}
}

static int ended(pid_t child)
{
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	return status;
}

/* What is each one's own is: of a child, its child, and their parent. */
static void at_once(char *memory)
{
	memory[PROTECTED] = 1;
	CHECK(mprotect(memory + PROTECTED, 4096, PROT_NONE) == 0);
	pid_t child = fork();
	if (child == 0) {
		filled(memory, 1);
		fill(memory, 2);
		pid_t grandchild = fork();
		if (grandchild == 0) {
			filled(memory, 2);
			fill(memory, 3);
			filled(memory, 3);
			_exit(5);
		}
		CHECK(ended(grandchild) == 5 << 8);
		filled(memory, 2);
		char *more = malloc(2 * MIB);
		memset(more, 1, 2 * MIB);
		free(more);
		CHECK(madvise(memory, MIB, MADV_DONTNEED) == 0 && memory[8] == 0);
		CHECK(mmap(memory, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory);
		_exit(4);
	}
	CHECK(ended(child) == 4 << 8);
	filled(memory, 1);
	/* One that has not looked yet, and has a child that looks. */
	child = fork();
	if (child == 0) {
		pid_t grandchild = fork();
		if (grandchild == 0) {
			filled(memory, 1);
			_exit(5);
		}
		_exit(ended(grandchild) >> 8);
	}
	CHECK(ended(child) == 5 << 8);
	/* What its parent may not read it may not read, either. */
	child = fork();
	if (child == 0)
		_exit(memory[PROTECTED]);
	CHECK(WIFSIGNALED(ended(child)));
	puts("each has its own");
}

/* A child that looks only when its parent has gone on, and has written other values. */
static void later(char *memory)
{
	int told[2];
	char word;
	CHECK(pipe(told) == 0);
	memory[PROTECTED] = 1;
	CHECK(mprotect(memory + PROTECTED, 4096, PROT_NONE) == 0);
	pid_t child = fork();
	if (child == 0) {
		CHECK(read(told[0], &word, 1) == 1);
		filled(memory, 1);
		fill(memory, 3);
		pid_t grandchild = fork();
		if (grandchild == 0) {
			filled(memory, 3);
			_exit(memory[PROTECTED]);
		}
		CHECK(WIFSIGNALED(ended(grandchild)));
		CHECK(madvise(memory, MIB, MADV_DONTNEED) == 0 && memory[8] == 0);
		_exit(4);
	}
	/* Another one that never looks, and ends first. */
	pid_t other = fork();
	if (other == 0) {
		CHECK(usleep(700000) == 0);
		_exit(6);
	}
	fill(memory, 2);
	CHECK(write(told[1], "", 1) == 1);
	CHECK(ended(child) == 4 << 8);
	CHECK(ended(other) == 6 << 8);
	filled(memory, 2);
	puts("each has its own");
}

static void without(char *memory)
{
	for (;;) {
		pid_t child = fork();
		if (child == 0) {
			CHECK(close_range(3, ~0U, 0) == 0);
			_exit(memory[8]);
		}
		printf("signal %d\n", WTERMSIG(ended(child)));
		fflush(stdout);
	}
}

static void dumps(char *memory)
{
	filled(memory, 1);
	abort();
}

int main(int count, char **words)
{
	char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fill(memory, 1);
	switch (count > 1 ? words[1][0] : 'o') {
	case 'l':
		later(memory);
		break;
	case 'w':
		without(memory);
		break;
	case 'd':
		dumps(memory);
		break;
	default:
		at_once(memory);
	}
}
