/* Mapping and unmapping. */
#include <sys/resource.h>

#include "check.h"

#ifdef __cplusplus
extern "C" {
#endif
extern rvm_bool_t rvm_register_page(char *addr, rvm_length_t length);
extern rvm_return_t allocate_vm(char **addr, unsigned long length);
extern rvm_return_t deallocate_vm(char *addr, unsigned long length);
extern rvm_bool_t rvm_no_yield;
#ifdef __cplusplus
}
#endif

#define PLACE ((char *)0x20000000000ul)

static void rounding(void)
{
    rvm_region_t region;

    start();
    make_file("data", 10000);
    rvm_init_region(&region);
    region.data_dev = (char *)"data";
    OK(rvm_map(&region, NULL));
    CHECK(region.length == 9728 && RVM_OFFSET_EQL_ZERO(region.offset));
    OK(rvm_unmap(&region));
    region.vmaddr = NULL;
    region.offset = RVM_MK_OFFSET(0, 4500);
    region.length = 10;
    OK(rvm_map(&region, NULL));
    CHECK(region.offset.low == 4096 && region.length == 4096);
    OK(rvm_unmap(&region));
    region.vmaddr = NULL;
    region.offset = RVM_MK_OFFSET(0, 0);
    region.length = 0;
    region.dev_length = RVM_MK_OFFSET(0, 5000);
    OK(rvm_map(&region, NULL));
    CHECK(region.length == 4608);
}

static void refused(void)
{
    rvm_region_t region, kept;
    rvm_options_t options;
    char name[MAXPATHLEN + 10];

    start();
    make_file("data", MIB);
    EXPECT(rvm_map(NULL, NULL), RVM_EREGION);
    memset(&region, 0, sizeof region);
    EXPECT(rvm_map(&region, NULL), RVM_EREGION);
    rvm_init_region(&region);
    EXPECT(rvm_map(&region, NULL), RVM_EREGION);
    region.data_dev = (char *)"nowhere";
    errno = 0;
    EXPECT(rvm_map(&region, NULL), RVM_EIO);
    CHECK(errno == ENOENT && strstr(rvm_error_text(), "nowhere") != NULL);
    region.data_dev = (char *)".";
    errno = 0;
    EXPECT(rvm_map(&region, NULL), RVM_EIO);
    CHECK(errno == EISDIR);
    region.data_dev = (char *)"/dev/zero";
    EXPECT(rvm_map(&region, NULL), RVM_ENOT_MAPPED);
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = 0;
    region.data_dev = name;
    EXPECT(rvm_map(&region, NULL), RVM_ENAME_TOO_LONG);
    region.data_dev = (char *)"data";
    region.offset = RVM_MK_OFFSET(0, MIB);
    EXPECT(rvm_map(&region, NULL), RVM_EOFFSET);
    region.offset = RVM_MK_OFFSET(1, 0);
    EXPECT(rvm_map(&region, NULL), RVM_EOFFSET);
    region.offset = RVM_MK_OFFSET(0, 8192);
    region.length = ~0ul;
    EXPECT(rvm_map(&region, NULL), RVM_EOFFSET);
    rvm_init_region(&region);
    region.data_dev = (char *)"data";
    memset(&options, 0, sizeof options);
    EXPECT(rvm_map(&region, &options), RVM_EOPTIONS);
    rvm_init_options(&options);
    options.pager = (char *)"x";
    EXPECT(rvm_map(&region, &options), RVM_EPAGER);
    kept = region;
    OK(rvm_map(&region, NULL));
    EXPECT(rvm_map(&kept, NULL), RVM_EOVERLAP);
    CHECK(kept.length == 0 && kept.vmaddr == NULL);
    kept.offset = RVM_MK_OFFSET(0, MIB - 4096);
    EXPECT(rvm_map(&kept, NULL), RVM_EOVERLAP);

    kept = region;
    kept.length -= 4096;
    EXPECT(rvm_unmap(&kept), RVM_ERANGE);
    kept.vmaddr += 4096;
    EXPECT(rvm_unmap(&kept), RVM_ERANGE);
    kept.vmaddr = name;
    EXPECT(rvm_unmap(&kept), RVM_ENOT_MAPPED);
    EXPECT(rvm_unmap(NULL), RVM_EREGION);
    OK(rvm_unmap(&region));
    EXPECT(rvm_unmap(&region), RVM_ENOT_MAPPED);
}

/* The original showed the old bytes here, although the change was safe in its log. */
static void stale_remap(void)
{
    rvm_region_t first, second;
    rvm_tid_t tid;

    start();
    make_file("data", MIB);
    first = map("data");
    commit(first.vmaddr, 'a', 100, flush);
    commit(first.vmaddr + 100, 'b', 100, no_flush);
    OK(rvm_unmap(&first));
    rvm_init_tid(&tid);
    OK(rvm_begin_transaction(&tid, restore));
    EXPECT(rvm_set_range(&tid, first.vmaddr, 8), RVM_ENOT_MAPPED);
    OK(rvm_abort_transaction(&tid));
    second = map("data");
    CHECK(second.vmaddr != first.vmaddr);
    CHECK(second.vmaddr[0] == 'a' && second.vmaddr[99] == 'a' && second.vmaddr[199] == 'b');
    /* An unmapped region stays readable and writable. */
    CHECK(first.vmaddr[0] == 'a' && first.vmaddr[199] == 'b');
    first.vmaddr[0] = 'z';
    CHECK(second.vmaddr[0] == 'a');
    OK(rvm_terminate());
}

static void addresses(void)
{
    rvm_region_t region;
    char *own, *place = NULL;

    start();
    make_file("data", MIB);
    rvm_init_region(&region);
    region.data_dev = (char *)"data";

    /* Memory of the program that is not registered is never replaced. */
    own = (char *)mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED);
    memset(own, 'o', MIB);
    region.vmaddr = own;
    EXPECT(rvm_map(&region, NULL), RVM_ERANGE);
    CHECK(own[0] == 'o' && own[MIB - 1] == 'o');
    region.vmaddr = own + 100;
    EXPECT(rvm_map(&region, NULL), RVM_ERANGE);

    /* Registered memory is replaced. */
    CHECK(rvm_register_page(own, MIB) == rvm_true);
    CHECK(rvm_register_page(own + 4096, 4096) == rvm_false);
    CHECK(rvm_register_page(own + MIB, 100) == rvm_false);
    region.vmaddr = own;
    OK(rvm_map(&region, NULL));
    CHECK(region.vmaddr == own && region.length == MIB && own[0] == 0);
    commit(own, 'r', 100, flush);
    CHECK(rvm_register_page(own, 4096) == rvm_false);
    EXPECT(deallocate_vm(own, MIB), RVM_ERANGE);
    make_file("second", MIB);
    region.data_dev = (char *)"second";
    EXPECT(rvm_map(&region, NULL), RVM_EVM_OVERLAP);
    region.vmaddr = own + 4096;
    EXPECT(rvm_map(&region, NULL), RVM_EVM_OVERLAP);
    region.vmaddr = own;
    OK(rvm_unmap(&region));
    CHECK(own[99] == 'r');
    OK(rvm_map(&region, NULL));
    CHECK(own[99] == 0);
    OK(rvm_unmap(&region));
    OK(deallocate_vm(own, MIB));

    /* Unmapped addresses need no registration. */
    region.vmaddr = PLACE;
    OK(rvm_map(&region, NULL));
    CHECK(region.vmaddr == PLACE);
    OK(rvm_unmap(&region));

    OK(allocate_vm(&place, MIB));
    CHECK(place != NULL);
    region.vmaddr = place;
    OK(rvm_map(&region, NULL));
    CHECK(region.vmaddr == place);
    EXPECT(allocate_vm(&place, MIB), RVM_EINTERNAL);
    EXPECT(allocate_vm(&place, 0), RVM_ERANGE);
    EXPECT(allocate_vm(NULL, MIB), RVM_ERANGE);
    rvm_no_yield = rvm_true;

    /* After a part is released the rest stays registered, and later mappings in that part are not replaced. */
    place = NULL;
    OK(allocate_vm(&place, MIB));
    OK(deallocate_vm(place + 4096, MIB - 4096));
    own = (char *)mmap(place + 4096, MIB - 4096, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(own == place + 4096);
    own[0] = 'o';
    make_file("third", MIB);
    region.data_dev = (char *)"third";
    region.vmaddr = place;
    region.length = 0;
    EXPECT(rvm_map(&region, NULL), RVM_ERANGE);
    CHECK(own[0] == 'o');
    region.length = 4096;
    OK(rvm_map(&region, NULL));
    CHECK(region.vmaddr == place && own[0] == 'o');
}

/* Offsets that do not fit 32 bits. */
static void large(void)
{
    unsigned long five = 5ul << 30;
    rvm_region_t region;
    char *far;

    start();
    make_file("data", five);
    region = map("data");
    CHECK(region.length == five);
    far = region.vmaddr + (4ul << 30) + 12345;
    commit(far, 'f', 1000, flush);
    OK(rvm_truncate());
    OK(rvm_unmap(&region));
    CHECK(munmap(region.vmaddr, five) == 0);
    rvm_init_region(&region);
    region.data_dev = (char *)"data";
    region.offset = RVM_MK_OFFSET(0, 4ul << 30);
    region.length = MIB;
    OK(rvm_map(&region, NULL));
    CHECK(region.vmaddr[12345] == 'f' && region.vmaddr[12345 + 999] == 'f' && region.vmaddr[12345 + 1000] == 0);
    OK(rvm_terminate());
}

/* The system has no memory. */
static void no_memory(void)
{
    struct rlimit limit;
    rvm_region_t region;

    start();
    make_file("data", 64ul << 30);
    CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
    limit.rlim_cur = 8ul << 30;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    rvm_init_region(&region);
    region.data_dev = (char *)"data";
    errno = 0;
    EXPECT(rvm_map(&region, NULL), RVM_ENO_MEMORY);
    CHECK(errno == ENOMEM && strstr(rvm_error_text(), "data") != NULL);
    region.length = MIB;
    OK(rvm_map(&region, NULL));
}

/* Two regions of one segment, and a segment under two names. */
static void several(void)
{
    rvm_region_t a, b;

    start();
    make_file("data", MIB);
    CHECK(symlink("data", "alias") == 0);
    rvm_init_region(&a);
    a.data_dev = (char *)"data";
    a.length = 8192;
    b = a;
    OK(rvm_map(&a, NULL));
    b.data_dev = (char *)"alias";
    EXPECT(rvm_map(&b, NULL), RVM_EOVERLAP);
    b.offset = RVM_MK_OFFSET(0, 8192);
    OK(rvm_map(&b, NULL));
    commit(a.vmaddr, 'a', 8192, flush);
    commit(b.vmaddr, 'b', 8192, flush);
    OK(rvm_unmap(&a));
    OK(rvm_unmap(&b));
    a = map("data");
    CHECK(a.vmaddr[8191] == 'a' && a.vmaddr[8192] == 'b' && a.vmaddr[16383] == 'b' && a.vmaddr[16384] == 0);
}

MAIN(CASE(rounding), CASE(refused), CASE(stale_remap), CASE(addresses), CASE(large), CASE(several), CASE(no_memory))
