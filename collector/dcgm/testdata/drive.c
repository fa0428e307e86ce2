// Drives the binding over the fake library, once around and then for an hour of polls, for
// a sanitizer to look at.

#include "../binding.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(call)                                                                                                     \
	do {                                                                                                               \
		int r_ = (call);                                                                                               \
		if (r_ != 0) {                                                                                                 \
			fprintf(stderr, "%s: %d\n", #call, r_);                                                                    \
			return 1;                                                                                                  \
		}                                                                                                              \
	} while (0)

size_t __sanitizer_get_current_allocated_bytes(void);

// once makes a connection with everything that it needs, reads a minute of polls, and
// gives it all back.
static int once(struct dcgm *d, int64_t (*control)(const char *), struct dcgm_samples *out) {
	static const uint16_t gauges[] = {1, 54, 100, 150, 155, 156, 203}, xid = 230;
	enum { GPUS = 8, GAUGES = sizeof gauges / sizeof gauges[0] };
	uintptr_t h, group, fields, xids;
	MUST(dcgm_connect(d, "localhost", 0, 100, &h));
	MUST(dcgm_group_create(d, h, "g", &group));
	struct abi_pair pairs[GPUS];
	for (uint32_t k = 0; k < GPUS; k++) {
		pairs[k] = (struct abi_pair){1, k};
		MUST(dcgm_group_add(d, h, group, 1, k));
	}
	MUST(dcgm_fields_create(d, h, GAUGES, gauges, "hour f", &fields));
	MUST(dcgm_fields_create(d, h, 1, &xid, "hour x", &xids));
	MUST(dcgm_watch(d, h, group, fields, 1000000, 0, 2));
	MUST(dcgm_watch(d, h, group, xids, 1000000, 600, 0));
	MUST(dcgm_policy_xid(d, h, group));
	MUST(dcgm_health_set(d, h, group, 0xffffffff));
	struct abi_value_v2 *raw = malloc(GPUS * GAUGES * sizeof *raw);
	struct abi_attributes *who = malloc(sizeof *who);
	struct abi_mig_hierarchy *tree = malloc(sizeof *tree);
	int64_t next = 1;
	for (int second = 0; second < 60; second++) {
		uint32_t ids[32], incidents;
		struct dcgm_incident found[64];
		int n = 32;
		if (second == 10)
			control("lose 3");
		if (second == 20)
			control("return 3");
		if (second == 30)
			control("mig 2 100 0 1");
		if (second == 40)
			control("mig-none");
		control("xid 5 31 0 0");
		MUST(dcgm_entities(d, h, 1, ids, &n, 1));
		MUST(dcgm_attributes(d, h, 0, who));
		MUST(dcgm_hierarchy(d, h, tree));
		out->n = out->cut = 0;
		MUST(dcgm_latest(d, h, pairs, GPUS, gauges, GAUGES, raw, out));
		out->n = out->cut = 0;
		MUST(dcgm_since(d, h, group, xids, next, &next, out));
		MUST(dcgm_health(d, h, group, found, 64, &incidents));
		control("forward 1000");
	}
	free(tree);
	free(who);
	free(raw);
	control("cut"); // and the rest of it is asked for in vain
	if (dcgm_unwatch(d, h, group, xids) != -21 || dcgm_fields_destroy(d, h, fields) != -21 || dcgm_disconnect(d, h) != -21) {
		fprintf(stderr, "a connection that was cut is used\n");
		return 1;
	}
	control("die"); // what has happened goes with it, or the fake would keep all of it
	control("start");
	return 0;
}

// hour fails if the process has more after an hour of polls than after ten minutes.
static int hour(struct dcgm *d, int64_t (*control)(const char *)) {
	struct dcgm_samples out = {.limit = 4096};
	size_t first = 0, last = 0;
	puts("an hour of polls"); // from now on stdout has its room
	for (int minute = 0; minute < 60; minute++) {
		if (once(d, control, &out) != 0)
			return 10;
		if (minute % 10 == 9) {
			last = __sanitizer_get_current_allocated_bytes();
			printf("after %d polls: %zu bytes\n", 60 * (minute + 1), last);
			first = first ? first : last;
		}
	}
	free(out.all);
	return last > first ? 11 : 0;
}

int main(int argc, char **argv) {
	char *why = NULL;
	if (argc != 2 || dcgm_open("/none/libdcgm.so.4", &why) || !why)
		return 2;
	free(why);
	struct dcgm *d = dcgm_open(argv[1], &why);
	void *library = dlopen(argv[1], RTLD_NOW);
	int64_t (*control)(const char *) = (int64_t(*)(const char *))dlsym(library, "fake_control");
	if (!d || !control)
		return 3;
	struct abi_version_info version;
	uintptr_t h, group, fields, xids;
	MUST(dcgm_init(d));
	MUST(dcgm_library_version(d, &version));
	MUST(dcgm_connect(d, "localhost", 0, 100, &h));
	MUST(dcgm_version(d, h, &version));
	uint32_t ids[64];
	int n = 64;
	MUST(dcgm_entities(d, h, 1, ids, &n, 0));
	MUST(dcgm_group_create(d, h, "g", &group));
	struct abi_pair pairs[64];
	struct abi_attributes *who = malloc(sizeof *who);
	for (int k = 0; k < n; k++) {
		uint32_t status;
		pairs[k] = (struct abi_pair){1, ids[k]};
		MUST(dcgm_group_add(d, h, group, 1, ids[k]));
		MUST(dcgm_gpu_status(d, h, ids[k], &status));
		MUST(dcgm_attributes(d, h, ids[k], who));
	}
	free(who);
	struct abi_mig_hierarchy *tree = malloc(sizeof *tree);
	control("mig 1 7 3 2");
	MUST(dcgm_hierarchy(d, h, tree));
	if (tree->count != 2)
		return 4;
	free(tree);
	control("switch 0 58");
	control("link 3 0 200 3");
	control("link 1 7 17 2");
	control("cpu 0 0 71");
	struct dcgm_link links[1];
	uint32_t link_n;
	MUST(dcgm_links(d, h, links, 1, &link_n)); // with too little room
	struct abi_cpus *cpus = malloc(sizeof *cpus);
	MUST(dcgm_cpus(d, h, cpus));
	if (link_n != 2 || cpus->count != 1 || cpus->cpus[0].cores.mask[1] != 0xff || dcgm_level(d, 1100) != 8 || dcgm_level(d, 60000) != 1)
		return 7;
	free(cpus);
	const uint16_t gauges[] = {1, 100, 155, 54};
	const uint16_t xid = 230;
	MUST(dcgm_fields_create(d, h, 4, gauges, "f", &fields));
	MUST(dcgm_fields_create(d, h, 1, &xid, "x", &xids));
	MUST(dcgm_watch(d, h, group, fields, 1000000, 0, 2));
	MUST(dcgm_watch(d, h, group, xids, 1000000, 600, 0));
	MUST(dcgm_policy_xid(d, h, group));
	struct abi_value_v2 *raw = malloc((size_t)n * 4 * sizeof *raw);
	struct dcgm_samples out = {.limit = 4096};
	MUST(dcgm_latest(d, h, pairs, (uint32_t)n, gauges, 4, raw, &out));
	if (out.n != (uint32_t)n * 4)
		return 5;
	for (int k = 0; k < 3000; k++) // more than there is room for at first
		control("xid 3 31 0 0");
	int64_t next;
	out.n = 0;
	MUST(dcgm_since(d, h, group, xids, 1, &next, &out));
	if (out.n != 3000 || out.cut != 0)
		return 6;
	out = (struct dcgm_samples){.all = out.all, .room = out.room, .limit = out.room};
	for (int k = 0; k < 3000; k++)
		control("xid 4 31 0 0");
	MUST(dcgm_since(d, h, group, xids, 1, &next, &out));
	if (out.n + out.cut != 6000 || out.cut == 0)
		return 7;
	control("lose 3");
	out.n = 0;
	MUST(dcgm_since(d, h, group, xids, next, &next, &out));
	if (out.n != 0) // blanks alone
		return 8;
	control("health 1 16 20 101");
	MUST(dcgm_health_set(d, h, group, 0xffffffff));
	struct dcgm_incident found[1];
	uint32_t incidents;
	MUST(dcgm_health(d, h, group, found, 1, &incidents));
	if (incidents != 1 || found[0].code != 101)
		return 9;
	MUST(dcgm_policy_none(d, h, group));
	MUST(dcgm_unwatch(d, h, group, xids));
	MUST(dcgm_fields_destroy(d, h, fields));
	MUST(dcgm_group_destroy(d, h, group));
	MUST(dcgm_disconnect(d, h));
	free(raw);
	free(out.all);
	control("return 3");
	control("health-none");
	control("mig-none");
	int failed = hour(d, control);
	dcgm_close(d);
	if (!failed)
		puts("all is well");
	return failed;
}
