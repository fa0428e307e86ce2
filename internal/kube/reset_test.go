package kube

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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
// a folder, and what it calls on the host is written down.
func TestTheResetOfOneGPU(t *testing.T) {
	const pods = "0::/kubepods.slice/kubepods-burstable.slice/cri-1.scope"
	var (
		engine  = process{"101", "nv-hostengine", "0::/system.slice/nvidia-dcgm.service", "/dev/nvidia3"}
		persist = process{"102", "nvidia-persiste", "0::/system.slice/nvidia-persistenced.service", "/dev/nvidia3"}
		plugin  = process{"103", "nvidia-device-p", pods, ""}
		export  = process{"104", "dcgm-exporter", pods, "/dev/nvidia3"}
		train   = process{"105", "python3", pods, "/dev/nvidia3"}
		other   = process{"106", "python3", pods, "/dev/nvidia31"}
	)
	const reset = "nvidia-smi --gpu-reset -i " + gpuUUID
	for name, tc := range map[string]struct {
		boot      string
		processes []process
		minor     string
		refuses   bool // the driver does
		driver    bool // it is in a container
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
			processes: []process{engine}, refuses: true,
			want: []string{"systemctl stop nvidia-dcgm.service", reset, "systemctl start nvidia-dcgm.service"}, fails: true,
		},
		"the driver in a container": {driver: true, want: []string{"chroot /run/nvidia/driver " + reset}},
		"another boot":              {boot: "b-2", processes: []process{engine}, says: "nothing to do"},
		"a GPU that is not there":   {minor: "N/A", says: "does not tell the device", fails: true},
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
			refuses := "exit 0"
			if tc.refuses {
				refuses = "echo 'GPU is in use by another client' >&2; exit 3"
			}
			stub("nsenter", `while [ "$1" != -- ]; do shift; done; shift
case "$*" in
*"nvidia-smi -q"*) echo "    Minor Number                      : `+cmp.Or(tc.minor, "3")+`" ;;
*"--gpu-reset"*) echo "$*" >>"$LOG"; `+refuses+` ;;
*) echo "$*" >>"$LOG" ;;
esac
`)
			stub("sleep", "exit 0\n")
			c := templates(t)["reset"].job.Spec.Template.Spec.Containers[0]
			cmd := exec.CommandContext(t.Context(), c.Command[0], append(c.Command[1:], strings.ReplaceAll(c.Args[0], "/proc/", m+"/"))...)
			cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "LOG=" + log, envBootID + "=b-1", envNode + "=gpu-a-02", envGPU + "=" + gpuUUID}
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
				t.Errorf("done on the host (-want +got):\n%s", d)
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
