/* Goes to pages in no order, STEPS times: reads a word there, or adds to it. Nothing else of it is in memory that the compiler tells of. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
	unsigned char *bytes = aligned_alloc(8192, (size_t)PAGES * 8192);
	uint64_t state = 1, sum = 0;
	for (long step = 0; step < STEPS; step++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		uint64_t *word = (uint64_t *)(bytes + (state >> 33) % PAGES * 8192);
		if (state >> 63)
			*word += state;
		else
			sum += *word;
	}
	printf("walked\n");
	return sum == 1;
}
