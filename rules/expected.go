package rules

import "stoker.dev/stoker/internal/remedy"

// booting returns the incident that boots the node just now; empty when none does.
// While it does, that nothing is heard of the node's GPUs is what has to be expected.
func (c *correlation) booting(node string) string {
	for i := range c.all {
		in := &c.all[i]
		if in.Phase.Closed() || in.Subject.Node != node || node == "" {
			continue
		}
		if cur := in.Current(); cur != nil && cur.Role == remedy.RoleRenew {
			return in.Name
		}
	}
	return ""
}
