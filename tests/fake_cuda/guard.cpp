// torch's CPU build has neither a device guard nor hooks for CUDA, and asks for both wherever a tensor reports "cuda".
// These do nothing. pretend(1) installs them, pretend(0) removes them.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

using c10::Device, c10::DeviceIndex, c10::DeviceType, c10::EventFlag, c10::Stream;
const Device device{DeviceType::CUDA, 0};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  Device getDevice() const override { return device; }
  Device exchangeDevice(Device) const override { return device; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, device); }
  Stream getDefaultStream(Device) const override { return Stream(Stream::DEFAULT, device); }
  Stream getNewStream(Device, int) const override { return Stream(Stream::DEFAULT, device); }
  Stream exchangeStream(Stream stream) const noexcept override { return stream; }
  void synchronizeStream(const Stream&) const override {}
  bool queryStream(const Stream&) const override { return true; }
  void record(void**, const Stream&, const DeviceIndex, const EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
};

// The autograd engine asks whether there is an accelerator, and which device is current.
struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void*) const override { return false; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
};

}  // namespace

extern "C" void pretend(int on) {
  static const Guard guard;
  static const Hooks hooks;
  // torch keeps its own hooks object for good, so its table of virtual functions is exchanged instead.
  auto** table = reinterpret_cast<void**>(const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks()));
  static void* const original = *table;
  *table = on ? *reinterpret_cast<void* const*>(&hooks) : original;
  c10::impl::device_guard_impl_registry[static_cast<int>(DeviceType::CUDA)].store(on ? &guard : nullptr);
}
