/* Functions of the C library that reference memory in the program's name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile size_t bytes = 80000;

static int compare(const void *one, const void *other)
{
	return memcmp(one, other, 4);
}

int main(void)
{
	char *source = malloc(bytes), *target = malloc(bytes);
	memset(source, 'x', bytes - 1);
	source[bytes - 1] = 0;
	memcpy(target, source, bytes);
	memmove(target + 1, target, bytes - 2);
	size_t length = strlen(target);
	for (size_t record = 0; record < 100; record++) {
		target[record * 16] = (char)(record * 37 % 101);
		target[record * 16 + 1] = (char)record;
	}
	qsort(target, 100, 16, compare);
	int sorted = 1;
	for (size_t record = 1; record < 100; record++)
		sorted &= target[record * 16 - 16] < target[record * 16];
	printf("length %zu, sorted %d\n", length, sorted);
	return 0;
}
