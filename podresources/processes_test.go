package podresources

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const testUID = "0a1b2c3d-0000-4000-8000-00000000000f"

func cgroupTexts() map[string]string {
	return map[string]string{
		"0::/kubepods.slice/kubepods-burstable.slice/" +
			"kubepods-burstable-pod0a1b2c3d_0000_4000_8000_00000000000f.slice/cri-containerd-ab.scope\n": testUID,
		"0::/../../kubepods-pod0a1b2c3d_0000_4000_8000_00000000000f.slice/cri-containerd-ab.scope\n": testUID,
		"12:pids:/user.slice\n3:memory:/kubepods/burstable/pod" + testUID +
			"/ab\n0::/\n": testUID,
		"0::/kubepods/pod" + testUID + "/ab/kubepods/pod11111111-0000-4000-8000-000000000000/cd\n": testUID,
		"0::/../../../besteffort/pod" + testUID + "/ab\n":                                          testUID,
		"0::/user.slice/user-0.slice/session-1.scope\n":                                            "",
		"0::/user.slice/user-0.slice/pod" + testUID + "/ab\n":                                      "",
		"0::/../../user.slice/burstable/pod" + testUID + "/ab\n":                                   "",
		"0::/user.slice/burstable/pod" + testUID + "\n":                                            "",
		"0::/pod" + testUID + "\n":                                                                 "",
		"0::/kubepods/burstable/ab/pod" + testUID + "\n":                                           "",
		"0::/kubepods/pod.x/x":                                                                     "",
		"0::":                                                                                      "",
		"":                                                                                         "",
		":\n::\n":                                                                                  "",
	}
}

func TestPodOfProcess(t *testing.T) {
	for text, want := range cgroupTexts() {
		procfs := t.TempDir()
		must.Do(t, os.Mkdir(filepath.Join(procfs, "42"), 0o755))
		must.Do(t, os.WriteFile(filepath.Join(procfs, "42", "cgroup"), []byte(text), 0o600))
		p := NewProcesses(procfs)
		expect.Is(t, p.PodUID(42), want, "%q", text)
		expect.Is(t, p.PodUID(43), "", "a process that is not there is of the pod")
	}
}

func FuzzProcessCgroup(f *testing.F) {
	for text := range cgroupTexts() {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if uid, _ := parseProcessCgroup(text); uid != "" && !validUID(uid) {
			t.Errorf("%q is no UID", uid)
		}
	})
}
