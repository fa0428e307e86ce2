package dcgm

// A Field is one that is read and how it is shown.
type Field struct {
	ID   Short  // 0 for what the collector makes itself, by name
	Name string // of the family on the page
	Type string // gauge, counter or label
	Help string
}

// label is the type of a field whose value is a label of all others.
const label = "label"

// The numbers of fields that mean more than a value.
const (
	fieldCluster   Short = 172 // UUID of the NVLink domain
	fieldClique    Short = 173
	fieldBind      Short = 6
	fieldClocks    Short = 112 // why the clocks are held down, as bits
	fieldXID       Short = 230
	fieldNVLink    Short = 450
	fieldName      Short = 50 // of an instance: its profile
	fieldUUID      Short = 54
	fieldFatalSXID Short = 856
	fieldSXID      Short = 857
	firstProfile   Short = 1000
	lastProfile    Short = 1099
)

// The families that dcgm-exporter makes itself.
const (
	xidCount     = "DCGM_EXP_XID_ERRORS_COUNT"
	clockCount   = "DCGM_EXP_CLOCK_EVENTS_COUNT"
	healthStatus = "DCGM_EXP_GPU_HEALTH_STATUS"
	peerStatus   = "DCGM_EXP_P2P_STATUS"
)

func (s Short) profiling() bool { return firstProfile <= s && s <= lastProfile }

// bandwidthHelp is what dcgm-exporter says of field 449, which is no counter.
const bandwidthHelp = "Total number of NVLink bandwidth counters for all lanes."

// DefaultFields are those that dcgm-exporter shows unless it is told otherwise, as its own
// list has them, and the health checks.
func DefaultFields() []Field {
	return []Field{
		{100, "DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz)."},
		{101, "DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz)."},
		{140, "DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C)."},
		{150, "DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C)."},
		{155, "DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W)."},
		{156, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ)."},
		{202, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "Total number of PCIe retries."},
		{203, "DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %)."},
		{204, "DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %)."},
		{206, "DCGM_FI_DEV_ENC_UTIL", "gauge", "Encoder utilization (in %)."},
		{207, "DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder utilization (in %)."},
		{fieldXID, "DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered."},
		{251, "DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB)."},
		{252, "DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB)."},
		{253, "DCGM_FI_DEV_FB_RESERVED", "gauge", "Framebuffer memory reserved (in MiB)."},
		{449, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "counter", bandwidthHelp},
		{526, "DCGM_FI_DEV_VGPU_LICENSE_STATUS", "gauge", "vGPU License status"},
		{393, "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for uncorrectable errors"},
		{394, "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for correctable errors"},
		{395, "DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed"},
		{1, "DCGM_FI_DRIVER_VERSION", label, "Driver Version"},
		{1001, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Ratio of time the graphics engine is active."},
		{1004, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "Ratio of cycles the tensor (HMMA) pipe is active."},
		{1005, "DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "Ratio of cycles the device memory interface is active sending or receiving data."},
		{1009, "DCGM_FI_PROF_PCIE_TX_BYTES", "gauge", "The rate of data transmitted over the PCIe bus - including both protocol headers and data payloads - in bytes per second."},
		{1010, "DCGM_FI_PROF_PCIE_RX_BYTES", "gauge", "The rate of data received over the PCIe bus - including both protocol headers and data payloads - in bytes per second."},
		{0, healthStatus, "gauge", "Health status"},
	}
}
