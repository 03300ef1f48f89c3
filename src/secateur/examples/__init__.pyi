from secateur.examples.encoder import Encoder as Encoder
from secateur.examples.fashion_mnist import find_folder as find_folder
from secateur.examples.fashion_mnist import load_fashion_mnist as load_fashion_mnist
from secateur.examples.image_folder import fashion_mnist_folder as fashion_mnist_folder
from secateur.examples.mobilenet_v2 import MobileNetV2 as MobileNetV2
from secateur.examples.resnet18 import ResNet18 as ResNet18
from secateur.examples.scenes import load_scenes as load_scenes
from secateur.examples.small_resnet import SmallResNet as SmallResNet
