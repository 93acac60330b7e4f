package stalltest

// servingKinds are servers and pipelines: idle is what they do when nobody asks.
func servingKinds() []Kind {
	return []Kind{
		job("vllm-tp2-spins-idle",
			"with two devices the worker waits for the next request in a broadcast: full utilization, nothing to do, for days",
			"github.com/vllm-project/vllm/issues/12664",
			loop(0, work("request", 20*second, decode(74, 0.9).links(30e9, 0).cpu(3)), Phase{
				Name: "no request", For: 3 * hour,
				Spread: 0.7, Truth: Idle, Load: spin(74, 16).cpu(2.1),
			})).in(deployment()).devices(2),
		job("glm-broadcast", "ranks wait for the next prompt in a broadcast at 66 W of a V100, rank 0 idles",
			"github.com/zai-org/GLM-130B/issues/32", loop(0, work("prompt", 40*second, decode(20, 0.9).links(10e9, 0)),
				Phase{Name: "no prompt", For: 70 * minute, Spread: 0.5, Truth: Idle, Load: spin(20, 16).cpu(8)})).in(onePod()).
			devices(8).on(V100(), NVMLOnly),
		job("nvenc-transcoding", "decoder and encoder work, the SMs do almost nothing", "reasoning",
			work("transcode", 0, transcode())).on(L4(), DCGMDefault).in(deployment()),
		job("amd-idle-model-resident",
			"amdgpu reports 100 % busy and boosts the clock as long as a compute context is resident, with nothing running",
			"github.com/ROCm/legacy-rocm-build/issues/5706, github.com/tobocop2/lilbee/issues/675",
			loop(0, work("answer", 30*second, decode(24, 0.9)), Phase{
				Name: "no request", For: 4 * hour, Spread: 0.4,
				Truth: Idle, Load: phantom(24),
			})).on(R9700(), AMDSysfs).in(deployment()),
		job("work-queue-in-kernel",
			"a persistent kernel polls a queue in the device's memory; a task comes each seven minutes", "reasoning",
			loop(0, work("task", 9*second, mcFP32()).spread(0.5), Phase{
				Name: "polls the queue", For: 7 * minute, Spread: 0.6,
				Truth: Idle, Load: spin(4, 132).cpu(0.3).net(2e3, 2e3),
			})).in(deployment()),
	}
}

func transcode() Load {
	l := open(2.5).host(1.5, 200).disk(4e6, 2e6).pcie(9e6, 5e6)
	l.Busy, l.SM, l.Occupancy, l.Decoder, l.Encoder, l.DRAM, l.Noise = 0.04, 0.01, 0.003, 0.55, 0.72, 0.06, 0.05
	return l
}

// phantom is a resident context that its driver reports as busy.
func phantom(memoryGiB float64) Load {
	l := open(memoryGiB)
	l.Busy = 1
	return l
}
