package store

import bolt "go.etcd.io/bbolt"

// Size is the length of a stored incident.
func (m *Memory) Size(name string) int { return len(m.records[name].data) }

// Size is the length of a stored incident.
func (b *Bolt) Size(name string) (n int) {
	_ = b.db.View(func(tx *bolt.Tx) error {
		n = len(tx.Bucket(bucketIncidents).Get([]byte(name)))
		return nil
	})
	return n
}
