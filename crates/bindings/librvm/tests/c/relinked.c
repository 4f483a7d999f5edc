/* A typical program: linked with -lrds -lseg -lrvm, and using the data that real programs use. */
#include <stdio.h>
#include <string.h>

/* C++ programs of the original wrap its headers in extern "C" themselves. */
#ifdef __cplusplus
extern "C" {
#endif
#include <rvm/rvm.h>
#include <rvm/rvm_segment.h>
#include <rvm/rvm_statistics.h>
extern long rds_rvmsize;
extern char *rds_startaddr;
extern long rvm_no_yield;
#ifdef __cplusplus
}
#endif

int main(void)
{
    rvm_region_def_t defs[1], *loaded;
    rvm_options_t *options = rvm_malloc_options();
    rvm_offset_t none = RVM_MK_OFFSET(0, 0);
    unsigned long n;
    FILE *file = fopen("data", "w");

    if (file == NULL || fseek(file, 1024 * 1024 - 1, SEEK_SET) != 0 || fputc(0, file) != 0 || fclose(file) != 0)
        return 1;
    options->log_dev = (char *)"log";
    options->create_log_file = rvm_true;
    options->create_log_size = RVM_MK_OFFSET(0, 1024 * 1024);
    if (RVM_INIT(options) != RVM_SUCCESS)
        return 2;
    RVM_INIT_REGION(defs[0], none, 65536, (char *)0x20000000000ul);
    if (rvm_create_segment((char *)"data", none, NULL, 1, defs) != RVM_SUCCESS)
        return 3;
    if (rvm_load_segment((char *)"data", none, NULL, &n, &loaded) != RVM_SUCCESS)
        return 4;
    /* Copied into this program if it was linked without -fPIC: both must be the same bytes. */
    if (rds_rvmsize != 65536 || rds_startaddr != loaded[0].vmaddr)
        return 5;
    if (rvm_release_segment(n, &loaded) != RVM_SUCCESS || rds_rvmsize != 0)
        return 6;
    rvm_free_options(options);
    if (rvm_terminate() != RVM_SUCCESS)
        return 7;
    /* The program may set all of it, but not what follows. */
    rvm_no_yield = -1;
    return rvm_no_yield == -1 ? 0 : 8;
}
