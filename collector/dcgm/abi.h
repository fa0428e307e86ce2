// What of libdcgm's binary interface the binding uses, in our own words. Sizes and
// offsets are those measured on DCGM 3.1.8 to 4.6.1, and asserted below: a compiler
// that lays a struct out otherwise can't build the collector.

#ifndef STOKER_DCGM_ABI_H
#define STOKER_DCGM_ABI_H

#include <stddef.h>
#include <stdint.h>

// The library compares the whole word: size in the low 24 bits, version above.
#define ABI_VERSION(type, number) ((uint32_t)sizeof(type) | (uint32_t)(number) << 24)

enum {
	ABI_MAX_DEVICES = 32,
	ABI_MAX_ENTITIES = 1024, // of one group, and of one reading
	ABI_MAX_FIELDS = 128,    // of one field group, and of one reading
};

struct abi_pair {
	uint32_t group, id;
};

struct abi_connect {
	uint32_t version, persist, timeout_ms, unix_socket;
};

struct abi_embedded {
	uint32_t version, mode; // mode 1: the engine collects by itself
	uintptr_t handle;       // out
	const char *log_file;
	uint32_t severity, denied;
	uint32_t deny[10];
};

struct abi_value_v1 {
	uint32_t version;
	uint16_t field, type;
	int32_t status;
	int64_t ts; // us since 1970
	union {
		int64_t i;
		double d;
		char s[256];
		char blob[4096];
	} v;
};

struct abi_value_v2 {
	uint32_t version, group, entity;
	uint16_t field, type;
	int32_t status;
	uint32_t unused;
	int64_t ts; // us since 1970
	union {
		int64_t i;
		double d;
		char s[256];
		char blob[4096];
	} v;
};

struct abi_attributes {
	uint32_t version;
	char clocks[3080], thermal[12], power[24];
	uint32_t identifiers;
	char brand[256], name[256], pci[256], serial[256], uuid[256], vbios[256], inforom[256];
	uint32_t pci_device, pci_subsystem;
	char driver[256];
	uint32_t virtualization;
	uint32_t memory, bar1_total, fb_total, fb_used, fb_free; // MiB
	uint32_t settings, persistence, mig, cc;
};

struct abi_mig_entity {
	struct abi_pair entity, parent;
	char gpu_uuid[128];
	uint32_t gpu_index, instance, compute_instance, profile, slices;
};

struct abi_mig_hierarchy {
	uint32_t version, count;
	struct abi_mig_entity entities[448];
};

struct abi_incident {
	uint32_t system, health; // health: 0 pass, 10 warn, 20 fail
	char message[1024];
	uint32_t code;
	struct abi_pair entity;
};

struct abi_health_v4 { // DCGM 3
	uint32_t version, overall, count;
	struct abi_incident incidents[64];
};

struct abi_health_v5 {
	uint32_t version, overall, count;
	struct abi_incident incidents[1024];
};

// Since DCGM 4.4. Its size was measured; that an entity's number comes before its
// statuses is so in all structs of this kind, and what is read is checked.
struct abi_peers {
	uint32_t version, count;
	struct {
		uint32_t gpu;
		uint32_t status[ABI_MAX_DEVICES]; // by place in gpus
	} gpus[ABI_MAX_DEVICES];
};

struct abi_policy_parameter {
	uint32_t kind; // 0: yes or no, 1: number
	int64_t value;
};

struct abi_policy {
	uint32_t version, condition, mode, isolation, action, validation, response;
	struct abi_policy_parameter parameters[7];
};

struct abi_policy_response {
	uint32_t version, condition;
	int64_t ts;
	uint32_t number, pad;
	uint32_t gpu;
};

struct abi_policy_response_v1 { // DCGM 3
	uint32_t version, condition;
	int64_t ts;
	uint32_t number, pad;
};

// Where the links of GPUs and switches stand: 3 is up. The room of each changes with
// releases, so that the struct is read by these numbers.
struct abi_links {
	uint32_t version, gpu_links, switch_links, size;
};

static const struct abi_links abi_links[] = {
    {0x050042bc, 36, 256, 17084}, // DCGM 4.6
    {0x040039bc, 18, 256, 14780}, // DCGM 4.0
    {0x030015bc, 18, 64, 5564},   // DCGM 3
};

enum { ABI_LINK_GPUS = 32, ABI_LINK_SWITCHES = 12, ABI_LINK_UP = 3 };

struct abi_cpu {
	uint32_t id;
	struct {
		uint32_t version;
		uint64_t mask[16];
	} cores;
};

struct abi_cpus {
	uint32_t version, count;
	struct abi_cpu cpus[8];
};

struct abi_field {
	uint16_t id;
	uint8_t type, size;
	char tag[48];
	uint32_t scope, nvml, level;
	void *format;
};

struct abi_version_info {
	uint32_t version;
	char text[512]; // version:4.6.0;arch:x86_64;...
};

#define ABI_SIZE(type, want) _Static_assert(sizeof(struct type) == (want), #type)
#define ABI_AT(type, field, want) _Static_assert(offsetof(struct type, field) == (want), #type "." #field)

ABI_SIZE(abi_pair, 8);
ABI_AT(abi_pair, id, 4);
ABI_SIZE(abi_connect, 16);
ABI_AT(abi_connect, persist, 4);
ABI_AT(abi_connect, timeout_ms, 8);
ABI_AT(abi_connect, unix_socket, 12);
ABI_SIZE(abi_embedded, 72);
ABI_AT(abi_embedded, mode, 4);
ABI_AT(abi_embedded, handle, 8);
ABI_AT(abi_embedded, log_file, 16);
ABI_AT(abi_embedded, severity, 24);
ABI_AT(abi_embedded, denied, 28);
ABI_AT(abi_embedded, deny, 32);
ABI_SIZE(abi_value_v1, 4120);
ABI_AT(abi_value_v1, field, 4);
ABI_AT(abi_value_v1, type, 6);
ABI_AT(abi_value_v1, status, 8);
ABI_AT(abi_value_v1, ts, 16);
ABI_AT(abi_value_v1, v, 24);
ABI_SIZE(abi_value_v2, 4128);
ABI_AT(abi_value_v2, group, 4);
ABI_AT(abi_value_v2, entity, 8);
ABI_AT(abi_value_v2, field, 12);
ABI_AT(abi_value_v2, type, 14);
ABI_AT(abi_value_v2, status, 16);
ABI_AT(abi_value_v2, ts, 24);
ABI_AT(abi_value_v2, v, 32);
ABI_SIZE(abi_attributes, 5220);
ABI_AT(abi_attributes, clocks, 4);
ABI_AT(abi_attributes, thermal, 3084);
ABI_AT(abi_attributes, power, 3096);
ABI_AT(abi_attributes, identifiers, 3120);
ABI_AT(abi_attributes, brand, 3124);
ABI_AT(abi_attributes, name, 3380);
ABI_AT(abi_attributes, pci, 3636);
ABI_AT(abi_attributes, serial, 3892);
ABI_AT(abi_attributes, uuid, 4148);
ABI_AT(abi_attributes, vbios, 4404);
ABI_AT(abi_attributes, inforom, 4660);
ABI_AT(abi_attributes, pci_device, 4916);
ABI_AT(abi_attributes, driver, 4924);
ABI_AT(abi_attributes, virtualization, 5180);
ABI_AT(abi_attributes, memory, 5184);
ABI_AT(abi_attributes, fb_total, 5192);
ABI_AT(abi_attributes, settings, 5204);
ABI_AT(abi_attributes, mig, 5212);
ABI_SIZE(abi_mig_entity, 164);
ABI_AT(abi_mig_entity, parent, 8);
ABI_AT(abi_mig_entity, gpu_uuid, 16);
ABI_AT(abi_mig_entity, gpu_index, 144);
ABI_AT(abi_mig_entity, instance, 148);
ABI_AT(abi_mig_entity, compute_instance, 152);
ABI_AT(abi_mig_entity, profile, 156);
ABI_AT(abi_mig_entity, slices, 160);
ABI_SIZE(abi_mig_hierarchy, 73480);
ABI_AT(abi_mig_hierarchy, count, 4);
ABI_AT(abi_mig_hierarchy, entities, 8);
ABI_SIZE(abi_incident, 1044);
ABI_AT(abi_incident, health, 4);
ABI_AT(abi_incident, message, 8);
ABI_AT(abi_incident, code, 1032);
ABI_AT(abi_incident, entity, 1036);
ABI_SIZE(abi_health_v4, 66828);
ABI_SIZE(abi_health_v5, 1069068);
ABI_AT(abi_health_v5, overall, 4);
ABI_AT(abi_health_v5, count, 8);
ABI_AT(abi_health_v5, incidents, 12);
ABI_SIZE(abi_peers, 4232);
ABI_AT(abi_peers, count, 4);
ABI_AT(abi_peers, gpus, 8);
ABI_SIZE(abi_policy, 144);
ABI_AT(abi_policy, condition, 4);
ABI_AT(abi_policy, mode, 8);
ABI_AT(abi_policy, response, 24);
ABI_AT(abi_policy, parameters, 32);
ABI_SIZE(abi_policy_parameter, 16);
ABI_AT(abi_policy_parameter, value, 8);
ABI_SIZE(abi_policy_response, 32);
ABI_AT(abi_policy_response, condition, 4);
ABI_AT(abi_policy_response, ts, 8);
ABI_AT(abi_policy_response, number, 16);
ABI_AT(abi_policy_response, gpu, 24);
ABI_SIZE(abi_policy_response_v1, 24);
ABI_AT(abi_policy_response_v1, number, 16);
ABI_SIZE(abi_cpu, 144);
ABI_AT(abi_cpu, cores, 8);
ABI_SIZE(abi_cpus, 1160);
ABI_AT(abi_cpus, cpus, 8);
ABI_SIZE(abi_field, 72);
ABI_AT(abi_field, scope, 52);
ABI_AT(abi_field, level, 60);
ABI_AT(abi_field, format, 64);
ABI_SIZE(abi_version_info, 516);
ABI_AT(abi_version_info, text, 4);

_Static_assert(ABI_VERSION(struct abi_connect, 2) == 0x02000010, "connect");
_Static_assert(ABI_VERSION(struct abi_embedded, 1) == 0x01000048, "embedded");
_Static_assert(ABI_VERSION(struct abi_value_v1, 1) == 0x01001018, "value v1");
_Static_assert(ABI_VERSION(struct abi_value_v2, 2) == 0x02001020, "value v2");
_Static_assert(ABI_VERSION(struct abi_attributes, 3) == 0x03001464, "attributes");
_Static_assert(ABI_VERSION(struct abi_mig_hierarchy, 2) == 0x02011f08, "MIG hierarchy");
_Static_assert(ABI_VERSION(struct abi_health_v4, 4) == 0x0401050c, "health v4");
_Static_assert(ABI_VERSION(struct abi_health_v5, 5) == 0x0510500c, "health v5");
_Static_assert(ABI_VERSION(struct abi_peers, 1) == 0x01001088, "peers");
_Static_assert(ABI_VERSION(struct abi_policy, 1) == 0x01000090, "policy");
_Static_assert(ABI_VERSION(struct abi_policy_response, 2) == 0x02000020, "policy response");
_Static_assert(ABI_VERSION(struct abi_policy_response_v1, 1) == 0x01000018, "policy response of DCGM 3");
_Static_assert(ABI_VERSION(struct abi_cpus, 1) == 0x01000488, "CPUs");
_Static_assert(ABI_VERSION(struct abi_version_info, 2) == 0x02000204, "version info");

typedef int (*abi_values_cb)(uint32_t group, uint32_t entity, struct abi_value_v1 *values, int n, void *user);
typedef int (*abi_policy_cb)(struct abi_policy_response *response, uint64_t user);
typedef int (*abi_policy_cb_v1)(void *response); // an abi_policy_response_v1

#endif
