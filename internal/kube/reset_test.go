package kube

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"stoker.dev/stoker/actuator"
)

const gpuUUID = "GPU-8f2b6c1e-0000-4a4e-9b1d-3c5a7e9f1b22"

func TestARepairOfAGPUNamesIt(t *testing.T) {
	rep := actuator.Repair{Name: "reset-gpu-a-02-abc", Action: "reset", Key: "gpu-ecc-a/5-reset", Node: "gpu-a-02", GPU: gpuUUID, BootID: "b-1"}
	job := templates(t)["reset"].make(rep, "own")
	env := map[string]string{}
	for _, e := range job.Spec.Template.Spec.Containers[0].Env {
		env[e.Name] = e.Value
	}
	if d := gocmp.Diff(map[string]string{envBootID: "b-1", envNode: "gpu-a-02", envGPU: gpuUUID}, env); d != "" {
		t.Errorf("environment (-want +got):\n%s", d)
	}
	if got := job.Annotations["stoker.dev/gpu"]; got != gpuUUID {
		t.Errorf("the repair is marked with GPU %q", got)
	}
	if _, err := ParseTemplates(map[string][]byte{"reset": []byte("kind: Pod")}); err == nil || !strings.Contains(err.Error(), "reset: ") {
		t.Errorf("a template that is no Job: %v, want an error that names the action", err)
	}
}

// A process is one of a machine that is made up.
type process struct{ pid, comm, cgroup, opens string }

// TestTheResetOfOneGPU runs the shipped script over a machine that is made up: /proc is
// a folder, and what it calls on the host is written down. What it ends there is gone.
func TestTheResetOfOneGPU(t *testing.T) {
	const pods = "0::/kubepods.slice/kubepods-burstable.slice/cri-1.scope"
	var (
		engine  = process{"101", "nv-hostengine", "0::/system.slice/nvidia-dcgm.service", "/dev/nvidia3"}
		persist = process{"102", "nvidia-persiste", "0::/system.slice/nvidia-persistenced.service", "/dev/nvidia3"}
		plugin  = process{"103", "nvidia-device-p", pods, ""}
		export  = process{"104", "dcgm-exporter", pods, "/dev/nvidia3"}
		train   = process{"105", "python3", pods, "/dev/nvidia3"}
		other   = process{"106", "python3", pods, "/dev/nvidia31"}
		fabric  = process{"107", "nv-fabricmanage", "0::/system.slice/nvidia-fabricmanager.service", "/dev/nvidia3"}
	)
	const reset = "nvidia-smi --gpu-reset -i " + gpuUUID
	for name, tc := range map[string]struct {
		boot      string
		processes []process
		minor     string
		smi       string // further lines of what the driver tells of the GPU
		refuses   string // what the driver does at the reset, in the shell
		driver    bool   // it is in a container
		gone      bool   // what is to be killed is gone already
		want      []string
		says      string
		fails     bool
	}{
		"what watches it lets go": {
			processes: []process{engine, persist, plugin, export, other},
			want: []string{
				"systemctl stop nvidia-dcgm.service", "systemctl stop nvidia-persistenced.service", "kill -TERM 104",
				reset, "kill -TERM 103", "systemctl start nvidia-dcgm.service", "systemctl start nvidia-persistenced.service",
			},
			says: "resetting GPU " + gpuUUID,
		},
		"a program has it open": {
			processes: []process{engine, train},
			want:      []string{"systemctl stop nvidia-dcgm.service", "systemctl start nvidia-dcgm.service"},
			says:      "in use by python3, process 105", fails: true,
		},
		"the driver refuses": {
			processes: []process{engine}, refuses: "exit 3",
			want: []string{"systemctl stop nvidia-dcgm.service", reset, "systemctl start nvidia-dcgm.service"}, fails: true,
		},
		"the kubelet is quick to run again what watches it": {
			processes: []process{export, other}, refuses: `[ -e "$M/again" ] || { echo >"$M/again"; cp -a "$M/ended" "$M/108"; exit 3; }`,
			want: []string{"kill -TERM 104", reset, "kill -TERM 108", reset}, says: "try 2",
		},
		"what is to let go has ended by itself":  {processes: []process{export, other}, gone: true, want: []string{"kill -TERM 104", reset}},
		"the fabric manager takes part in it":    {processes: []process{fabric, other}, want: []string{reset}},
		"persistence mode is off for that long":  {smi: "Persistence Mode : Enabled", want: []string{"nvidia-smi -i " + gpuUUID + " -pm 0", reset, "nvidia-smi -i " + gpuUUID + " -pm 1"}},
		"a GPU that is divided is left as it is": {smi: "MIG Mode\n        Current : Enabled\n        Pending : Disabled", processes: []process{engine}, says: "divided by MIG", fails: true},
		"a GPU that could be divided and is not": {smi: "MIG Mode\n        Current : Disabled\n        Pending : Disabled", want: []string{reset}},
		"the driver in a container":              {driver: true, want: []string{"chroot /run/nvidia/driver " + reset}},
		"another boot":                           {boot: "b-2", processes: []process{engine}, says: "nothing to do"},
		"a GPU that is not there":                {minor: "N/A", says: "does not tell the device", fails: true},
		"its time is over while the driver hangs": {
			processes: []process{engine}, refuses: `kill -TERM "$PPID_OF_ALL"; exec /bin/sleep 5`,
			want: []string{"systemctl stop nvidia-dcgm.service", reset, "systemctl start nvidia-dcgm.service"}, fails: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := machine(t, tc.processes)
			write(t, filepath.Join(m, "sys/kernel/random/boot_id"), cmp.Or(tc.boot, "b-1")+"\n")
			smi := "1/root/usr/bin/nvidia-smi"
			if tc.driver {
				smi = "1/root/run/nvidia/driver/usr/bin/nvidia-smi"
			}
			write(t, filepath.Join(m, smi), "")
			bin, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
			stub := func(name, script string) {
				write(t, filepath.Join(bin, name), "#!/bin/sh\n"+script)
				if err := os.Chmod(filepath.Join(bin, name), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			kill := `mv "$M/$3" "$M/ended"`
			if tc.gone {
				kill += "; exit 1"
			}
			stub("nsenter", `while [ "$1" != -- ]; do shift; done; shift
case "$*" in
*"nvidia-smi -q"*) printf '    Product Name : NVIDIA H100\n    `+tc.smi+`\n    Minor Number                      : `+cmp.Or(tc.minor, "3")+`\n'; exit ;;
esac
echo "$*" >>"$LOG"
case "$*" in
*"--gpu-reset"*) `+cmp.Or(tc.refuses, ":")+` ;;
"kill -TERM "*) `+kill+` ;;
"systemctl stop "*) for p in $(grep -l "$3" "$M"/*/cgroup); do rm -r "${p%/cgroup}"; done ;;
esac
`)
			stub("sleep", "exit 0\n")
			c := templates(t)["reset"].job.Spec.Template.Spec.Containers[0]
			script := strings.ReplaceAll("export PPID_OF_ALL=$$\n"+c.Args[0], "/proc/", m+"/")
			cmd := exec.CommandContext(t.Context(), c.Command[0], append(c.Command[1:], script)...)
			cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "LOG=" + log, "M=" + m, envBootID + "=b-1", envNode + "=gpu-a-02", envGPU + "=" + gpuUUID}
			cmd.WaitDelay = time.Second // what hangs still has its output open
			out, err := cmd.CombinedOutput()
			if failed := err != nil; failed != tc.fails {
				t.Errorf("it has ended with %v; fails: %t\n%s", err, tc.fails, out)
			}
			if !strings.Contains(string(out), tc.says) {
				t.Errorf("it says %q, want %q", out, tc.says)
			}
			var got []string
			if b, err := os.ReadFile(log); err == nil {
				got = strings.Split(strings.TrimSpace(string(b)), "\n")
			}
			if d := gocmp.Diff(tc.want, got); d != "" {
				t.Errorf("done on the host (-want +got):\n%s\n%s", d, out)
			}
		})
	}
}

// machine makes a folder that looks like /proc.
func machine(t *testing.T, processes []process) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range processes {
		at := filepath.Join(dir, p.pid)
		write(t, filepath.Join(at, "comm"), p.comm+"\n")
		write(t, filepath.Join(at, "cgroup"), p.cgroup+"\n")
		write(t, filepath.Join(at, "fd/0"), "")
		if p.opens != "" {
			if err := os.Symlink(p.opens, filepath.Join(at, "fd/7")); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
