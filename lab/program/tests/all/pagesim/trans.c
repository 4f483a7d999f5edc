/* The paper's TRANS. */
#include <stdio.h>
#include <stdlib.h>

#define ROWS 1500

int main(void)
{
	volatile double *matrix = aligned_alloc(8192, (ROWS * ROWS * sizeof *matrix + 8191) / 8192 * 8192);
	for (long column = 0; column < ROWS; column++)
		for (long row = column + 1; row < ROWS; row++) {
			double above = matrix[column * ROWS + row];
			double below = matrix[row * ROWS + column];
			matrix[column * ROWS + row] = below;
			matrix[row * ROWS + column] = above;
		}
	printf("transposed\n");
	return 0;
}
