// The calls of the binding: what Go sees of the library.

#ifndef STOKER_DCGM_BINDING_H
#define STOKER_DCGM_BINDING_H

#include "abi.h"

struct dcgm;

// A sample is one value without its 4 KiB of room.
struct dcgm_sample {
	uint32_t group, entity;
	uint16_t field, type; // type: 'i', 'd', 's', 'b', 't'
	int32_t status;
	int64_t ts; // us since 1970
	int64_t i;
	double d;
	uint32_t place; // in the buffer, for its text
	uint32_t blank; // the value says that there is none
};

// A list of samples that grows up to a limit.
struct dcgm_samples {
	struct dcgm_sample *all;
	uint32_t n, room, limit, cut;
};

struct dcgm_incident {
	struct abi_pair entity;
	uint32_t system, health, code;
};

struct dcgm_link {
	uint32_t group, parent;
	uint16_t index, up;
};

enum { DCGM_NO_SYMBOL = -1000 }; // the library lacks the function

// dcgm_open opens a library; on NULL *error says why, to be freed.
struct dcgm *dcgm_open(const char *path, char **error);
void dcgm_close(struct dcgm *d);

int dcgm_init(struct dcgm *d);
int dcgm_library_version(struct dcgm *d, struct abi_version_info *out);
int dcgm_connect(struct dcgm *d, const char *address, int unix_socket, uint32_t timeout_ms, uintptr_t *h);
int dcgm_disconnect(struct dcgm *d, uintptr_t h);
int dcgm_embed(struct dcgm *d, uintptr_t *h);
int dcgm_unembed(struct dcgm *d, uintptr_t h);
int dcgm_version(struct dcgm *d, uintptr_t h, struct abi_version_info *out);
int dcgm_entities(struct dcgm *d, uintptr_t h, uint32_t group, uint32_t *ids, int *n, uint32_t flags);
int dcgm_gpu_status(struct dcgm *d, uintptr_t h, uint32_t gpu, uint32_t *status);
int dcgm_attributes(struct dcgm *d, uintptr_t h, uint32_t gpu, struct abi_attributes *out);
int dcgm_hierarchy(struct dcgm *d, uintptr_t h, struct abi_mig_hierarchy *out);

// dcgm_level returns the smallest kind of entity that has a field, a GPU where the library
// does not know the field.
uint32_t dcgm_level(struct dcgm *d, uint16_t field);

// dcgm_links fills at most room links that exist; *n is how many there were.
int dcgm_links(struct dcgm *d, uintptr_t h, struct dcgm_link *out, uint32_t room, uint32_t *n);
int dcgm_cpus(struct dcgm *d, uintptr_t h, struct abi_cpus *out);
int dcgm_group_create(struct dcgm *d, uintptr_t h, const char *name, uintptr_t *group);
int dcgm_group_add(struct dcgm *d, uintptr_t h, uintptr_t group, uint32_t entity_group, uint32_t entity);
int dcgm_group_destroy(struct dcgm *d, uintptr_t h, uintptr_t group);
int dcgm_fields_create(struct dcgm *d, uintptr_t h, int n, const uint16_t *ids, const char *name, uintptr_t *fields);
int dcgm_fields_destroy(struct dcgm *d, uintptr_t h, uintptr_t fields);
int dcgm_watch(struct dcgm *d, uintptr_t h, uintptr_t group, uintptr_t fields, int64_t every_us, double keep_s, int keep_n);
int dcgm_unwatch(struct dcgm *d, uintptr_t h, uintptr_t group, uintptr_t fields);
int dcgm_health_set(struct dcgm *d, uintptr_t h, uintptr_t group, uint32_t systems);

// dcgm_health fills at most room incidents; *n is how many there were.
int dcgm_health(struct dcgm *d, uintptr_t h, uintptr_t group, struct dcgm_incident *out, uint32_t room, uint32_t *n);

// dcgm_peers asks which GPUs reach each other over NVLink, all of them.
int dcgm_peers(struct dcgm *d, uintptr_t h, struct abi_peers *out);

// dcgm_latest reads what the engine has of each entity and field, never the driver.
// Raw has room for entities times fields values; one sample is made of each.
int dcgm_latest(struct dcgm *d, uintptr_t h, const struct abi_pair *entities, uint32_t ne, const uint16_t *fields,
                uint32_t nf, struct abi_value_v2 *raw, struct dcgm_samples *out);

// dcgm_since adds the samples from since on that have a value.
int dcgm_since(struct dcgm *d, uintptr_t h, uintptr_t group, uintptr_t fields, int64_t since_us, int64_t *next_us,
               struct dcgm_samples *out);

// dcgm_wake_fd returns an eventfd that can be read whenever dcgm_policy_xid's library
// has told of an XID. The caller closes it.
int dcgm_wake_fd(struct dcgm *d);
int dcgm_policy_xid(struct dcgm *d, uintptr_t h, uintptr_t group);
int dcgm_policy_none(struct dcgm *d, uintptr_t h, uintptr_t group);

#endif
