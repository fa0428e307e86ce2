// Drives the binding over the fake library once around, for a sanitizer to look at.

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
	dcgm_close(d);
	puts("all is well");
	return 0;
}
